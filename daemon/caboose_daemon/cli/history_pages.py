"""The terminal output of `caboose history`."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from caboose_daemon.cli.style import COLOURS, MARKS
from caboose_daemon.format import duration, plural
from caboose_daemon.offline.trying.knowledge import in_words

Json = dict[str, Any]
MAX_CAUSES = 8
MAX_KNOWN = 20
NARROW = 100


def page(answer: Json, found: list[Json], width: int) -> RenderableType:
    """The incidents, newest first, a table of their causes, and what was tried."""
    if not found:
        return Group(Text("no matching incident; `caboose diagnose` shows the present state", "dim"), *_known(answer))
    shown = answer["incidents"]
    parts: list[RenderableType] = [_table(shown, width)]
    if len(shown) < len(found):
        parts.append(Text(f"{len(found) - len(shown):,} more; -n {len(found)} shows all\n", "dim"))
    return Group(*parts, *_causes(found), *_known(answer), *_rollbacks(answer["rollback"]))


def _known(answer: Json) -> Iterator[RenderableType]:
    """What was tried, and the changes that were declared while no incident was open."""
    lines = (
        ("tried, and whether it helped", [in_words(row) for row in answer["tried"]]),
        (
            "changed while no incident was open",
            [f"{r['job']}, step {r['step']:,}: {r['change']}" for r in answer["changes"]],
        ),
    )
    for title, rows in lines:
        if rows:
            yield Text(f"\n{title}", "bold")
            yield from (Text(f"  {row}") for row in rows[:MAX_KNOWN])
    if answer.get("stop"):
        yield Text(f"\n{answer['stop']}", "yellow")


def _table(rows: list[Json], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("incident", overflow="fold")
    table.add_column("when", no_wrap=True)
    table.add_column("what and why", overflow="fold", ratio=3)
    table.add_column("how it ended", overflow="fold", ratio=2)
    now = time.time()
    for row in rows:
        severity = row["worst"]
        name = Text.assemble((f"{MARKS[severity]} ", COLOURS[severity]), (row["id"], "bold" if row["is_open"] else ""))
        step = f"step {row['onset_step']:,}"
        when = Text.assemble(f"{duration(now - row['opened_time'])} ago", ("\n" + step, "dim"))
        table.add_row(name, when, _what(row, width), _ending(row))
    return table


def _what(row: Json, width: int) -> Text:
    text = Text.assemble((row["rule"], COLOURS[row["worst"]]))
    if width >= NARROW:
        text.append(f": {row['summary']}", "dim")
    cause = row["cause"]
    text.append("\n" + (f"{cause['title']} ({cause['confidence']:.0%})" if cause else "no known cause"))
    return text


def _ending(row: Json) -> Text:
    if row["is_open"]:
        ack = row["acknowledged"]
        return Text.assemble((row["state"], "bold"), f": {ack['by']}: {ack['reason']}" if ack else "")
    took = f"after {duration(max(row['seconds'], 1.0))}: " if row["seconds"] is not None else ""
    left = "unresolved, " if row["state"] == "unresolved" else ""
    text = Text(f"{left}{took}{row['reason']}", "yellow" if left and not row["acknowledged"] else "")
    for line in row["resolved_by"]:
        text.append(f"\n+ {line}", "green")
    return text


def _rollbacks(totals: Json) -> list[RenderableType]:
    """What rollback did, and what advice would have saved."""
    lines = []
    if totals["num_done"]:
        lines.append(f"{plural(totals['num_done'], 'rollback')} done: {totals['steps_lost']:,} steps lost by them")
    if totals["num_judged"]:
        would = f"would have saved {totals['saved']:,.0f} steps of training"
        if totals["saved"] < 0:
            would = f"would have cost {-totals['saved']:,.0f} steps of training more than waiting"
        right = f"{totals['num_right']} of {totals['num_judged']} would have helped"
        lines.append(f"{plural(totals['num_judged'], 'rollback')} advised and not done: together they {would}; {right}")
    return [Text("\n" + "\n".join(lines))] if lines else []


def _causes(rows: list[Json]) -> list[RenderableType]:
    """How often each cause occurred, and how the incidents ended."""
    causes = Counter(row["cause"]["title"] if row["cause"] else "no known cause" for row in rows)
    head = f"{plural(len(rows), 'incident')} of {plural(len({row['job'] for row in rows}), 'job')}"
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(justify="right", style="bold")
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", style="dim")
    for title, num in causes.most_common(MAX_CAUSES):
        ours = [row for row in rows if (row["cause"]["title"] if row["cause"] else "no known cause") == title]
        helped = sum(bool(row["resolved_by"]) for row in ours)
        still = sum(row["is_open"] for row in ours)
        alone = len(ours) - helped - still
        ends = (
            (helped, "after a declared change or rollback"),
            (alone, "without a declared change"),
            (still, "still open"),
        )
        table.add_row(f"{num} x", title, ", ".join(f"{count} {how}" for count, how in ends if count))
    return [Text(head, "bold"), table]
