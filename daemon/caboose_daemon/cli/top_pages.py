"""The terminal output of `caboose top`: all jobs, one job, and plain lines without a terminal."""

import math
import time
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from caboose_daemon.cli.jobs import jobs_table, shown_state
from caboose_daemon.cli.style import COLOURS, MARKS, health, state
from caboose_daemon.cli.top_view import View
from caboose_daemon.format import duration, figure, plural, seconds, to_float
from caboose_daemon.ops.demo.incident import cause_in_words, first_cause
from caboose_daemon.ops.demo.plot import plot

Json = dict[str, Any]
GUTTER = 10
MAX_WIDTH = 160
SILENT_SECONDS = 10.0
LISTED_RANKS = 8
"""Of more ranks, the worst are listed and all are counted."""


def screen(view: View, console: Console) -> RenderableType:
    """The whole screen."""
    width, height = min(console.width, MAX_WIDTH), console.height
    body = _all_jobs(view, width, height) if view.job is None else _one_job(view, width, height)
    return Group(_title(view, width), *body)


def _title(view: View, width: int) -> Text:
    keys = "↑↓ choose  ⏎ open  q quit" if view.job is None else "← all jobs  l log  q quit"
    left = f" caboose top  {time.strftime('%H:%M:%S')}  {view.source.where.partition('://')[2]}"
    line = Text(left + " " * max(1, width - len(left) - len(keys) - 1) + keys, "reverse", no_wrap=True)
    line.truncate(width)
    if view.problem:
        line.append(f"\n {view.problem}; retrying, the values shown are old", "bold red not reverse")
    return line


def _all_jobs(view: View, width: int, height: int) -> list[RenderableType]:
    if not view.jobs:
        summary = "no job yet: a run appears once it calls caboose.attach(...)"
        return [Padding(Text(summary, "dim"), (1, 1))]
    room = max(3, height - 8)
    first = max(0, min(view.chosen - room // 2, len(view.jobs) - room))
    rows = view.jobs[first : first + room]
    num_open = sum(row["num_open"] for row in view.jobs)
    summary = f"{plural(len(view.jobs), 'job')}, {plural(num_open, 'open incident')}"
    summary += f"; {first + 1} to {first + len(rows)} shown" if len(rows) < len(view.jobs) else ""
    return [Padding(jobs_table(rows, width - 2, view.chosen - first), (0, 1)), Text(f" {summary}", "dim")]


def _one_job(view: View, width: int, height: int) -> list[RenderableType]:
    detail = view.detail
    if detail is None:
        return [Padding(Text(f"loading {view.job} ...", "dim"), (1, 1))]
    head = Text.assemble(
        " ", (view.job or "", "bold"), "  ", state(shown_state(detail)), "  ", health(detail["health"])
    )
    head.append(f"  attempt {detail['attempt']}, {detail['num_live']}/{detail['world']} ranks, ", "dim")
    head.append(f"rollback {detail['rollback']}", "dim")
    incidents = _ended(detail, width) or _incidents(view.incidents, view.decisions, width)
    ranks = _ranks(detail["ranks"], detail["world"], rows=2 if height < 36 else LISTED_RANKS)
    spare = height - 5 - len(incidents) - len(ranks) - 4
    tall = max(2, min(12, spare * 2 // 3))
    low = max(2, min(6, spare - tall))
    parts: list[RenderableType] = [Text(), head, _numbers(detail)]
    parts += _curve("loss" + (", log" if view.is_log else ""), view.curve("loss"), tall, width, "cyan", view.is_log)
    if spare >= 5:
        parts += _curve("gradient norm", view.curve("grad_norm_max"), low, width, "magenta", view.is_log)
    return [*parts, *incidents, *ranks]


def _numbers(detail: Json) -> Text:
    last = detail["last"] or {}
    share = detail["agent_share"]
    cells = [
        ("step", f"{detail['step']:,}"),
        ("loss", figure(detail["loss"])),
        ("norm", figure(last.get("grad_norm"), 3)),
        ("lr", figure(last.get("lr"), 3)),
        ("step time", seconds(to_float(detail["step_seconds"]))),
        ("agent", "-" if share is None else f"{to_float(share):.1%}"),
    ]
    text = Text(" ")
    for name, value in cells:
        text.append(f"{name} ", "dim")
        text.append(f"{value}   ", "bold")
    return text


def _curve(title: str, values: list[float], height: int, width: int, colour: str, is_log: bool) -> list[RenderableType]:
    if is_log:
        values = [math.log10(value) if value > 0 else math.nan for value in values]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return [Text(f" {title}: no finite value yet", "dim")]
    low, high = (10 ** min(finite), 10 ** max(finite)) if is_log else (min(finite), max(finite))
    lines = plot(values, width - GUTTER - 2, height)
    rows: list[RenderableType] = [Text(f" {title}", "bold")]
    for number, line in enumerate(lines):
        mark = f"{high:.3g}" if number == 0 else f"{low:.3g}" if number == len(lines) - 1 else ""
        rows.append(Text.assemble((f"{mark:>{GUTTER}} ", "dim"), (line, colour), no_wrap=True))
    return rows


def _ended(detail: Json, width: int) -> list[RenderableType]:
    """The verdict on a run that is over; nothing while it runs."""
    ending = detail.get("ending")
    if ending is None:
        return []
    severity = detail["health"] if detail["health"] in MARKS else "info"
    seen = "; acknowledged" if ending["is_acknowledged"] else ""
    line = Text(f" {MARKS[severity]} {ending['how']}{seen}", COLOURS[severity], no_wrap=True)
    stood = Text(f"   {'the run was healthy' if ending['standing'] == 'healthy' else ending['standing']}", no_wrap=True)
    for text in (line, stood):
        text.truncate(width, overflow="ellipsis")
    return [line, stood]


def _incidents(incidents: list[Json], decisions: list[Json], width: int) -> list[RenderableType]:
    open_ones = [incident for incident in incidents if incident["is_open"]]
    if not open_ones:
        past = f"; {plural(len(incidents), 'incident')} before" if incidents else ""
        return [Text.assemble((" ✓ nothing is wrong", "green"), (past, "dim"))]
    lines: list[RenderableType] = []
    for incident in open_ones[:3]:
        severity = incident["severity"]
        line = Text.assemble(
            (f" {MARKS[severity]} {incident['id']} {incident['rule']}", COLOURS[severity]),
            (f" {incident['state']}, since step {incident['onset_step']:,}: ", "dim"),
            incident["summary"],
            no_wrap=True,
        )
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
        cause = first_cause(incident)
        why = f"   {cause_in_words(incident)}" + (f" → {cause['first_fix']}" if cause is not None else "")
        text = Text(why, no_wrap=True)
        text.truncate(width, overflow="ellipsis")
        lines.append(text)
    if len(open_ones) > 3:
        lines.append(Text(f"   and {len(open_ones) - 3} more open", "dim"))
    if decisions and decisions[0]["is_open"]:
        lines.append(Text(f"   {decisions[0]['summary']}: {decisions[0]['state']}", "yellow", no_wrap=True))
    return lines


def _ranks(ranks: list[Json], world: int, rows: int) -> list[RenderableType]:
    """Few ranks one by one; of many, the count of each state and the worst ranks."""
    if not ranks:
        return [Text(" no rank has reported", "dim")]
    shown = ranks if len(ranks) <= rows else sorted(ranks, key=_worst_first)[:rows]
    counts: dict[str, int] = {}
    for rank in ranks:
        counts[_rank_state(rank)] = counts.get(_rank_state(rank), 0) + 1
    missing = world - len(ranks)
    summary = ", ".join(f"{num:,} {name}" for name, num in counts.items()) + (
        f", {missing:,} never reported" if missing else ""
    )
    worst = "" if len(shown) == len(ranks) else f"; the {len(shown)} worst"
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for place in range(6):
        table.add_column(no_wrap=True, justify="left" if place < 3 else "right")
    for rank in shown:
        table.add_row(
            f"  rank {rank['rank']}",
            Text(str(rank["host"])[:20]),
            state(_rank_state(rank)),
            f"loss {figure(rank['loss'])}",
            seconds(to_float(rank["step_seconds"])),
            Text(rank["error"][:40], "red") if rank["error"] else f"heard {duration(rank['silent_seconds'])} ago",
        )
    return [Text.assemble((" ranks", "bold"), (f"  {summary}{worst}", "dim")), table]


def _rank_state(rank: Json) -> str:
    """The state; silent where a live rank is not heard, as it is not counted as live."""
    is_silent = rank["state"] == "live" and rank["silent_seconds"] >= SILENT_SECONDS
    return "silent" if is_silent else str(rank["state"])


def _worst_first(rank: Json) -> tuple[bool, bool, float, float]:
    """Sort key: failed ranks first, then those with a bad loss, then silent, then slow ones."""
    seconds = to_float(rank["step_seconds"])
    loss_is_bad = rank["loss"] is not None and not math.isfinite(to_float(rank["loss"]))
    slow = seconds if math.isfinite(seconds) else 0.0
    return (
        rank["state"] != "failed",
        not loss_is_bad,
        -rank["silent_seconds"] if rank["state"] not in ("left", "terminated") else 0,
        -slow,
    )


def plain_lines(view: View, printed: dict[str, str]) -> list[str]:
    """A line for each job and incident that changed; `printed` holds the last lines."""
    now = time.strftime("%H:%M:%S")
    lines = [f"{now} {view.problem}"] if view.problem else []
    for row in view.jobs if view.job is None else [r for r in view.jobs if r["job"] == view.job]:
        summary = f"{row['job']} {shown_state(row)} step {row['step']} loss {figure(row['loss'])} {row['health']}"
        summary += f" ranks {row['num_live']}/{row['world']}" + (f" open {row['num_open']}" if row["num_open"] else "")
        summary += f": {row['ending']['text']}" if row.get("ending") else ""
        if printed.get(row["job"]) != summary:
            printed[row["job"]] = summary
            lines.append(f"{now} {summary}")
    for incident in view.incidents:
        summary = f"{incident['id']} {incident['rule']} {incident['state']}: {incident['summary']}"
        if printed.get(incident["id"]) != summary and (incident["is_open"] or incident["id"] in printed):
            printed[incident["id"]] = summary
            lines.append(f"{now} {summary}")
    return lines
