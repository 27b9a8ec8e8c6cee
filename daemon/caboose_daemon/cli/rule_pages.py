"""The terminal output of `caboose rules`: a table, lines for a pipe, and a page about one rule.

Rows are in the API's shape (`rule_shapes.rule`), from a daemon or from a file.
"""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from caboose_daemon.rules.parts.describe import RUNBOOKS, Description

COMMON = ("enabled", "severity")
COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
TITLES = {"": "How it decides", "Design": "Why it works this way"}
TRIGGERS = {"step": "after every aligned step", "tick": "about once a second"}


def listed(answer: dict[str, Any], width: int) -> RenderableType:
    """All rules, in three columns that fit 80 characters."""
    rows = answer["rules"]
    has_state = any("jobs" in row for row in rows)
    longest = max((len(key) for row in rows for key in _keys(row)), default=0)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("rule", no_wrap=True)
    table.add_column("thresholds", no_wrap=True)  # wrapped here, between keys
    table.add_column("needs and state" if has_state else "needs", overflow="fold")
    for row in rows:
        name = [Text(row["rule"], style="bold"), Text(f"at most {row['severity']}" if row["enabled"] else "off")]
        keys = textwrap.fill(" ".join(_keys(row)), max(longest, width // 3), break_on_hyphens=False)
        state = [Text(f"needs {_words(row['needs'], 'nothing special')}", style="dim")]
        if has_state:
            name.append(Text(f"{row['runs']:,} runs, {_mean(row)}", style="dim"))
            name += [Text(f"{row['failures']} failed", style="bold red")] if row["failures"] else []
            state += _states(row)
        cells = (Text("\n").join(name), Text(keys), Text("\n").join(state))
        table.add_row(*cells, style="" if row["enabled"] else "dim")
    notes = (
        "* not the default, which is in brackets",
        f"runbook: {RUNBOOKS}#NAME; `caboose rules show NAME` explains a rule",
    )
    return Group(Text(f"From {answer['source']}", style="dim"), table, *(Text(note, style="dim") for note in notes))


def plain_list(answer: dict[str, Any]) -> str:
    """All rules, one line each, in columns without blanks."""
    rows = answer["rules"]
    has_state = any("jobs" in row for row in rows)
    titles = ["rule", "enabled", "severity", "thresholds", "needs", "runbook"]
    lines = [titles + (["state", "runs", "mean_ms", "failures"] if has_state else [])]
    for row in rows:
        line = [row["rule"], _toml(row["enabled"]), row["severity"], ",".join(_keys(row)), ",".join(row["needs"])]
        line.append(row["runbook"])
        if has_state:
            states = (state.plain.replace(": ", "=").replace(" ", "_") for state in _states(row))
            mean = "-" if row["mean_seconds"] is None else f"{row['mean_seconds'] * 1e3:.3f}"
            line += [";".join(states), str(row["runs"]), mean, str(row["failures"])]
        lines.append([cell or "-" for cell in line])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def one_page(about: Description, row: dict[str, Any], source: str) -> RenderableType:
    """One rule, explained."""
    parts: list[RenderableType] = [
        Text(about.name, style="bold"),
        Text(about.sees[:1].upper() + about.sees[1:]),
    ]
    for title, text in about.sections:
        parts += [_title(TITLES.get(title, title)), *_prose(text)]
    parts += [_title("Thresholds"), Text(f"[rules.{about.name}] in caboose.toml; shown from {source}", style="dim")]
    parts.append(_thresholds(row))
    facts = Table.grid(padding=(0, 2))
    for title, text in (
        ("runs", TRIGGERS[about.trigger]),
        ("needs", _words(about.needs, "nothing special") + "; abstains without it" * bool(about.needs)),
        ("muted in", _words(about.muted_in, "no regime")),
        ("starts over after", _words(about.forgets_after, "a new attempt only")),
        ("runbook", about.runbook),
    ):
        facts.add_row(Text(title, style="dim"), Text(text))
    parts += [_title("When it runs"), facts]
    if "jobs" in row:
        cost = f"{row['runs']:,} runs, {_mean(row)} each, {row['failures']} failed"
        parts += [_title("State"), *_states(row), Text(cost, style="dim")]
    return Group(*parts)


def _title(text: str) -> RenderableType:
    return Text(f"\n{text}", style="bold cyan")


def _prose(text: str) -> Iterator[RenderableType]:
    """Paragraphs, wrapped to the width; indented ones keep their lines."""
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield Text()
        is_set = any(line.startswith("    ") for line in paragraph.splitlines())
        yield Text(paragraph if is_set else " ".join(paragraph.split()))


def _thresholds(row: dict[str, Any]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for key, threshold in row["thresholds"].items():
        is_changed = threshold["value"] != threshold["default"]
        value = Text(_toml(threshold["value"]), style="bold yellow" if is_changed else "")
        origin = f" ({threshold['from']}; the default is {_toml(threshold['default'])})" if is_changed else ""
        table.add_row(Text(key, style="bold"), value, Text(threshold["doc"] + origin))
    return table


def _keys(row: dict[str, Any]) -> list[str]:
    """Each threshold as key=value; one that is not the default with a star and the default in brackets."""
    keys = []
    for key, threshold in row["thresholds"].items():
        value, default = threshold["value"], threshold["default"]
        if value != default:
            keys.append(f"{key}={_toml(value)}*({_toml(default)})")
        elif key not in COMMON:
            keys.append(f"{key}={_toml(value)}")
    return keys


def _states(row: dict[str, Any]) -> list[Text]:
    """One line per job that runs, or in which the rule has an open finding."""
    lines = []
    for job in row["jobs"]:
        if job["state"] == "open":
            text = f"{job['job']}: open, {job['severity']} since step {job['onset_step']}"
            lines.append(Text(text, style=COLOURS.get(job["severity"], "")))
        elif job["job_state"] not in ("ended", "cancelled"):
            missing = f", no {' and '.join(job['missing'])}" if job["state"] == "abstaining" else ""
            lines.append(Text(f"{job['job']}: {job['state']}{missing}", style="dim" if missing else ""))
    return lines or [Text("no job", style="dim")]


def _mean(row: dict[str, Any]) -> str:
    return "-" if row["mean_seconds"] is None else f"{row['mean_seconds'] * 1e6:.0f} us"


def _words(names: Sequence[str], otherwise: str) -> str:
    return ", ".join(name.replace("_", " ") for name in names) or otherwise


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(str, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
