"""How the demo looks: one screen that is drawn anew, or plain lines where there is no terminal."""

import math
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from caboose_daemon.demo.plot import plot
from caboose_daemon.demo.watcher import Watcher, to_float

COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
FIXED_LINES = 21
"""Lines of the screen that are not curves."""
STATES = {"live": "green", "left": "dim", "failed": "bold red", "expected": "dim"}


def screen(watcher: Watcher, console: Console, *, total: int, note: str) -> RenderableType:
    """The whole screen."""
    width = min(console.width, 110)
    parts: list[RenderableType] = [_header(watcher, total, note)]
    if watcher.steps:
        spare = max(3, console.height - FIXED_LINES)  # the finding at the bottom must fit as well
        parts.append(_curve(watcher, "loss", "loss", min(8, -(-2 * spare // 3)), width, "cyan"))
        parts.append(_curve(watcher, "grad_norm_max", "gradient norm", min(4, spare // 3), width, "magenta"))
    if watcher.is_known:
        parts.append(_ranks(watcher))
    parts += [_finding(item, width) for item in watcher.findings[:2]]
    if watcher.is_known and not watcher.findings:
        parts.append(Text("  nothing found so far", style="dim"))
    return Group(*parts)


def _header(watcher: Watcher, total: int, note: str) -> RenderableType:
    step = watcher.detail.get("step", 0)
    done = int(24 * min(1.0, step / total)) if total else 0
    text = Text.assemble(
        ("  Caboose demo  ", "bold"),
        ("█" * done, "cyan"),
        ("░" * (24 - done), "dim"),
        f"  step {step}/{total}",
        (f"   {note}", "dim"),
    )
    page = Text.assemble(("  live page  ", "dim"), (f"{watcher.url}/?job={watcher.job}", "underline"))
    return Group(Text(), text, page)


def _curve(watcher: Watcher, name: str, title: str, height: int, width: int, colour: str) -> RenderableType:
    values = watcher.curve(name)
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


def _ranks(watcher: Watcher) -> RenderableType:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 2))
    for column in ("rank", "state", "step", "loss", "step time"):
        table.add_column(column, justify="left" if column == "state" else "right")
    for rank in watcher.detail["ranks"]:
        seconds = to_float(rank["step_seconds"])
        table.add_row(
            str(rank["rank"]),
            Text(rank["state"], style=STATES[rank["state"]]),
            str(rank["step"]),
            f"{to_float(rank['loss']):.4f}",
            f"{seconds * 1000:.0f} ms" if math.isfinite(seconds) else "",
        )
    return table


def _finding(item: dict[str, Any], width: int) -> RenderableType:
    state = item["last"]["state"]
    title = f"{item['rule']} · {item['severity']} · {state}"
    body = Text.assemble(
        item["first"]["summary"],
        (f"\nbegan at step {item['onset_step']}, detected at step {item['detected_step']}", "dim"),
        (f"\n{item['last']['summary']}" if state == "resolved" else "", "dim"),
    )
    colour = "dim" if state == "resolved" else COLOURS[item["severity"]]
    return Panel(body, title=title, title_align="left", border_style=colour, width=width)


def summary(watcher: Watcher, *, spike_at: int, width: int) -> RenderableType:
    """What happened, when it was noticed, and what noticing cost."""
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="dim", justify="right")
    lines.add_column()
    detail = watcher.detail
    lines.add_row("watched", f"{detail['num_steps']} steps of {detail['world']} ranks, {detail['num_layers']} layers")
    lines.add_row("what happened", f"step {spike_at} got a corrupted batch and a learning rate 40 times too high")
    spikes = [f for f in watcher.findings if f["rule"] == "loss_spike" and f["detected_step"] >= spike_at]
    if spikes:
        found = spikes[-1]
        delay = found["detected_step"] - spike_at
        when = "on that very step" if delay == 0 else f"{delay} step{'s' if delay > 1 else ''} after"
        lines.add_row(
            "detected", f"{found['rule']} at step {found['detected_step']}, {when}: {found['first']['summary']}"
        )
        lines.add_row("outcome", found["last"]["summary"])
    else:
        lines.add_row("detected", Text("nothing: the run ended before the fault showed", style="yellow"))
    others = [f for f in watcher.findings if f not in spikes]
    beside = [f for f in others if f["onset_step"] >= spike_at]
    if beside:
        lines.add_row("seen with it", _listed(beside))
    lines.add_row("false alarms", _listed([f for f in others if f not in beside]) or "none")
    seconds, agent = to_float(detail["step_seconds"]), to_float(detail["agent_seconds"])
    if math.isfinite(seconds) and math.isfinite(agent):
        cost = f"{agent * 1000:.2f} ms of a {seconds * 1000:.0f} ms step ({agent / seconds:.1%}) on the training thread"
        lines.add_row("agent's cost", cost)
    return Panel(lines, title="Summary", title_align="left", border_style="cyan", width=width)


def _listed(findings: list[dict[str, Any]]) -> str:
    return ", ".join(f"{found['rule']} at step {found['onset_step']}" for found in findings)
