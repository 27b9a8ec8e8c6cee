"""The terminal output of `caboose diagnose --now`."""

from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from caboose_daemon.format import duration
from caboose_daemon.offline.hypotheses.hypothesis import VERDICTS

Json = dict[str, Any]
COLOURS = {"supported": "bold yellow", "undecided": "cyan", "refuted": "dim"}


def page(answer: Json) -> RenderableType:
    """What the run shows, and each hypothesis with its verdict and evidence."""
    took = f" ({duration(3600 * answer['hours'])})" if answer["hours"] is not None else ""
    since = f"since step {answer['since']:,}{took}"
    head = Text.assemble((answer["job"], "bold"), f"  {answer['state']}, step {answer['step']:,}; {since}:")
    facts = _table()
    facts.add_row("training", answer["training"]["says"])
    num = answer["validation"]["num_evaluations"]
    facts.add_row("validation", f"{answer['validation']['says']}, {num} evaluation{'' if num == 1 else 's'}")
    parts: list[RenderableType] = [head, Padding(facts, (0, 0, 0, 2))]
    for number, found in enumerate(answer["hypotheses"], 1):
        colour = COLOURS[found["verdict"]]
        parts += [
            Text(),
            Text.assemble(f"{number}  ", (found["title"], "bold"), ": ", (VERDICTS[found["verdict"]], colour)),
            Padding(_one(found), (0, 0, 0, 3)),
        ]
    return Group(*parts, Text())


def _one(found: Json) -> Table:
    table = _table()
    table.add_row("test", found["test"])
    for line in found["evidence"]:
        table.add_row("", line)
    for line in found["missing"]:
        table.add_row("missing", line)
    for name, key in (("do", "do"), ("line", "code"), ("do not", "do_not")):
        if found[key]:
            table.add_row(name, Text(found[key], "cyan" if key == "code" else ""))
    return table


def _table() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table
