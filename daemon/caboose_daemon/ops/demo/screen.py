"""The demo's terminal output: a screen that is redrawn, and the summary at the end."""

import math
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from caboose_daemon.format import to_float
from caboose_daemon.ops.demo.incident import cause_in_words, fix_in_words, found_by, headline
from caboose_daemon.ops.demo.plot import plot
from caboose_daemon.ops.demo.run import BAD_STEPS, WatchedRun

COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
FIXED_LINES = 24
"""Lines of the screen that are not curves."""
STATES = {"live": "green", "left": "dim", "terminated": "yellow", "failed": "bold red", "expected": "dim"}


def screen(run: WatchedRun, console: Console, *, total: int, note: str) -> RenderableType:
    """The whole screen; `total` is the number of steps."""
    width = min(console.width, 110)
    parts: list[RenderableType] = [_header(run, total, note)]
    if run.steps:
        spare = max(3, console.height - FIXED_LINES)
        parts.append(_curve(run, "loss", "loss", min(8, -(-2 * spare // 3)), width, "cyan"))
        parts.append(_curve(run, "grad_norm_max", "gradient norm", min(4, spare // 3), width, "magenta"))
    if run.incidents:
        parts.append(_incident(run.incidents[0], width))
        parts += [_decision(decision, width) for decision in run.decisions[:1]]
    elif run.detail:
        parts.append(Text("\n  no incident so far", style="dim"))
    if run.detail:
        parts.append(_ranks(run))  # last: on a short screen it is the first to be cut
    return Group(*parts)


def _header(run: WatchedRun, total: int, note: str) -> RenderableType:
    step = run.detail.get("step", 0)
    done = int(24 * min(1.0, step / total)) if total else 0
    text = Text.assemble(
        ("  Caboose demo  ", "bold"),
        ("█" * done, "cyan"),
        ("░" * (24 - done), "dim"),
        f"  step {step}/{total}",
        (f"   {note}", "dim"),
    )
    page = Text.assemble(("  live page  ", "dim"), (run.page, "underline"))
    return Group(Text(), text, page)


def _curve(run: WatchedRun, name: str, title: str, height: int, width: int, colour: str) -> RenderableType:
    values = run.curve(name)
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return Text(f"  {title}: no finite value yet", style="dim")
    gutter = 10
    lines = plot(values, width - gutter - 4, height)
    top, bottom = f"{max(finite):.3g}", f"{min(finite):.3g}"
    rows = []
    for number, line in enumerate(lines):
        mark = top if number == 0 else bottom if number == len(lines) - 1 else ""
        rows.append(Text.assemble((f"{mark:>{gutter}} ", "dim"), (line, colour)))
    last = values[-1]
    return Group(Text.assemble("\n  ", (title, "bold"), f"  {last:.4g}"), *rows)


def _ranks(run: WatchedRun) -> RenderableType:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 2))
    for column in ("rank", "state", "step", "loss", "step time"):
        table.add_column(column, justify="left" if column == "state" else "right")
    for rank in run.detail["ranks"]:
        seconds = to_float(rank["step_seconds"])
        table.add_row(
            str(rank["rank"]),
            Text(rank["state"], style=STATES[rank["state"]]),
            str(rank["step"]),
            f"{to_float(rank['loss']):.4f}",
            f"{seconds * 1000:.0f} ms" if math.isfinite(seconds) else "",
        )
    return table


def _incident(incident: dict[str, Any], width: int) -> RenderableType:
    rows = _rows()
    _row(rows, "", incident["summary"])
    if not incident["is_open"]:
        _row(rows, "closed", incident["reason"])
    _row(rows, "since", f"step {incident['onset_step']}, found by {found_by(incident)}")
    _row(rows, "cause", cause_in_words(incident), style="bold")
    if fix := fix_in_words(incident):
        _row(rows, "first fix", fix)
    colour = COLOURS[incident["severity"]] if incident["is_open"] else "dim"
    return Panel(rows, title=headline(incident), title_align="left", border_style=colour, width=width)


def _decision(decision: dict[str, Any], width: int) -> RenderableType:
    rows = _rows()
    for line in decision["explanation"][2:]:
        _row(rows, "", line)
    colour = "green" if decision["state"] == "committed" else "yellow"
    title = f"{decision['summary']} · {decision['state']}"
    return Panel(rows, title=title, title_align="left", border_style=colour, width=width)


def _rows() -> Table:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", justify="right", no_wrap=True)
    rows.add_column()
    return rows


def _row(rows: Table, name: str, text: str, style: str = "") -> None:
    rows.add_row(name, Text(text, style=style))  # as Text: brackets in a summary are markup to rich


def summary(run: WatchedRun, *, spike_at: int, width: int) -> RenderableType:
    """What was wrong, when and as what it was found, cause and fix, and the agent's cost."""
    rows = _rows()
    detail = run.detail
    _row(rows, "watched", f"{detail['num_steps']} steps of {detail['world']} ranks, {detail['num_layers']} layers")
    wrong = f"{BAD_STEPS} steps from {spike_at} on got corrupted batches and a learning rate 40 times too high"
    _row(rows, "what happened", wrong)
    ours = sorted((i for i in run.incidents if i["opened_step"] >= spike_at), key=lambda i: i["number"])
    if ours:
        found = ours[0]
        delay = found["opened_step"] - spike_at
        when = "on the same step" if delay == 0 else f"{delay} step{'s' if delay > 1 else ''} after"
        what = f"{found['id']}: {found['rule']} ({found['worst']}) at step {found['opened_step']}, {when}"
        _row(rows, "incident", f"{what}\n{found['summary']}")
        _row(rows, "found by", found_by(found))
        _row(rows, "outcome", found["reason"] or f"{found['state']} when the run ended")
        _row(rows, "cause", cause_in_words(found), style="bold")
        if fix := fix_in_words(found):
            _row(rows, "first fix", fix)
    else:
        _row(rows, "incident", "none: the run ended before the fault was found", style="yellow")
    _row(rows, "rollback", *_rolled_back(run))
    if also := ours[1:]:
        _row(rows, "also", _listed(also))
    _row(rows, "false alarms", _listed([i for i in run.incidents if i not in ours]) or "none")
    seconds, agent = to_float(detail["step_seconds"]), to_float(detail["agent_seconds"])
    if math.isfinite(seconds) and math.isfinite(agent):
        cost = f"{agent * 1000:.2f} ms of a {seconds * 1000:.0f} ms step ({agent / seconds:.1%}) on the training thread"
        _row(rows, "agent's cost", cost)
    return Panel(rows, title="Summary", title_align="left", border_style="cyan", width=width)


def _rolled_back(run: WatchedRun) -> tuple[str, str]:
    """The outcome and its colour."""
    done = [decision for decision in run.decisions if decision["state"] == "committed"]
    if not done:
        return "none: the run ended before a decision", "yellow"
    return done[0]["outcome"], "green"


def _listed(incidents: list[dict[str, Any]]) -> str:
    return ", ".join(f"{found['id']} {found['rule']} at step {found['onset_step']}" for found in incidents)
