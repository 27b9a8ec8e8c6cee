"""The terminal output of `caboose compare`.

Design
------
Runs are columns headed by letters, so that long names take one line each, and numbers of one kind are in one line. Runs
that do not fit beside each other come in several tables. The best of a line has a star as well as a colour; a run whose
loss is not finite at the end has none.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from caboose_daemon.format import seconds as measured
from caboose_daemon.offline.comparing.comparison import Comparison
from caboose_daemon.offline.comparing.evidence import shown
from caboose_daemon.offline.comparing.levels import Level
from caboose_daemon.offline.comparing.measures import Measures

BARS = "▁▂▃▄▅▆▇█"
LABEL_WIDTH = 24
RUN_WIDTH = 13
SPARK_WIDTH = 40
MAX_SETTINGS = 30
MARKS = {"result": ("•", "cyan"), "setting": ("→", "green"), "caution": ("!", "yellow")}
SOURCES = {"daemon": "watched", "journal": "from the journal", "log": "replayed"}

Pick = Callable[[Measures], float | None]
Show = Callable[[Measures], str]


def page(comparison: Comparison, width: int) -> RenderableType:
    """The whole comparison."""
    parts: list[RenderableType] = [_legend(comparison, width), Text()]
    per_table = max(1, (width - LABEL_WIDTH) // RUN_WIDTH)
    for begin in range(0, len(comparison.runs), per_table):
        parts += [_table(comparison, range(begin, min(begin + per_table, len(comparison.runs)))), Text()]
    parts.append(_statements(comparison))
    if comparison.descent is not None:
        parts += [Text(), _sizes(comparison)]
    return Group(*parts, Text())


def _legend(comparison: Comparison, width: int) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    table.add_column(no_wrap=True)
    scale = [value for numbers in comparison.measures for value in numbers.shape]
    num = min(SPARK_WIDTH, max(10, width // 3))
    for letter, run, numbers in zip(comparison.letters, comparison.runs, comparison.measures, strict=True):
        about = f"{run.state}, " if run.source != "log" and run.state != "known" else ""
        where = f" {run.where}" if run.source != "daemon" else ""
        rows = f", one row in {run.steps_per_row} steps" if run.steps_per_row > 1 else ""
        text = Text.assemble((run.name, "bold"), (f"  {about}{SOURCES[run.source]}{where}{rows}", "dim"))
        table.add_row(letter, text, Text(_spark(numbers.shape, scale, num), "cyan"))
    return table


def _spark(values: Sequence[float], scale: Sequence[float], num: int) -> str:
    """The losses on a scale that all runs share: logarithmic if all are above 0."""
    if not values:
        return ""
    values = [values[i * len(values) // num] for i in range(num)] if len(values) > num else values
    bend = math.log if min(scale) > 0 else float
    low, high = bend(min(scale)), bend(max(scale))
    span = (high - low) or 1.0
    return "".join(BARS[min(7, int(8 * (bend(value) - low) / span))] for value in values)


def _table(comparison: Comparison, which: range) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(style="dim", no_wrap=True, min_width=LABEL_WIDTH - 2)
    for i in which:
        table.add_column(comparison.letters[i], justify="right", no_wrap=True, min_width=RUN_WIDTH - 2)
    for label, pick, show in _lines(comparison):
        cells = [show(numbers) for numbers in comparison.measures]
        if not any(cells):
            continue
        best = set() if comparison.are_repeats else _best(pick, comparison.measures)
        styled = [Text(f"{cells[i]} *", "bold green") if i in best else Text(f"{cells[i] or '-'}  ") for i in which]
        table.add_row(label, *styled)
    _add_settings(table, comparison, which)
    return table


def _lines(c: Comparison) -> Iterator[tuple[str, Pick | None, Show]]:
    """Label, the number whose lowest value is best, and the cell."""
    yield "steps", None, lambda m: f"{m.last_step:,}"
    yield "attempts", None, lambda m: f"{m.num_attempts}" if max(x.num_attempts for x in c.measures) > 1 else ""
    yield f"loss at step {c.step:,}", lambda m: m.standing, lambda m: _level(m.at_common, m)
    yield "loss at its end", None, lambda m: _level(m.final, m)
    yield "  not finite since step", None, lambda m: _count(m.not_finite_since)
    yield "best loss", lambda m: m.best, lambda m: _number(m.best)
    yield "  at step", None, lambda m: _count(m.best_step)
    yield "best validation", lambda m: m.validation_best, lambda m: _number(m.validation_best)
    yield "  at step", None, lambda m: _count(m.validation_best_step)
    yield "last validation", lambda m: m.validation_final, lambda m: _number(m.validation_final)
    if c.goal is not None:
        yield f"steps to loss {c.goal:.4g}", lambda m: m.steps_to_common, lambda m: _count(m.steps_to_common)
        yield "  samples", lambda m: m.samples_to_common, lambda m: _short(m.samples_to_common)
        yield "  time", lambda m: m.seconds_to_common, lambda m: _time(m.seconds_to_common)
    yield "noise of the loss", None, lambda m: "" if m.scatter is None else f"{100 * m.scatter:.2g} %"
    yield "spikes", lambda m: m.num_spikes, lambda m: f"{m.num_spikes}"
    yield "steps not finite", None, lambda m: f"{m.num_bad}" if any(x.num_bad for x in c.measures) else ""
    yield "incidents", lambda m: m.num_incidents, lambda m: f"{m.num_incidents}"
    yield "  critical", None, lambda m: f"{m.num_critical}" if any(x.num_critical for x in c.measures) else ""
    yield "step time", lambda m: m.step_seconds, lambda m: _time(m.step_seconds)
    yield "samples in a step", None, lambda m: _short(m.samples_per_step)
    yield "peak lr", None, lambda m: "" if m.lr_peak is None else f"{m.lr_peak:.3g}"
    yield "  reached at step", None, lambda m: _count(m.lr_warm_step)
    yield "last lr", None, lambda m: "" if m.lr_final is None else f"{m.lr_final:.3g}"


def _add_settings(table: Table, c: Comparison, which: range) -> None:
    shown_above = {"peak lr", "batch of all ranks"}
    names = [name for name in c.settings.differing if name not in shown_above]
    if not names:
        return
    table.add_section()
    table.add_row(Text("settings that differ", "bold"), *["" for _ in which])
    for name in names[:MAX_SETTINGS]:
        cells = [c.settings.tables[i].get(name) for i in which]
        table.add_row(
            _cut(name, LABEL_WIDTH - 2), *[f"{_cut(shown(v) if v is not None else '?', 14)}  " for v in cells]
        )
    if len(names) > MAX_SETTINGS:
        table.add_row(f"and {len(names) - MAX_SETTINGS} more (--json)", *["" for _ in which])


def _statements(c: Comparison) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for statement in c.statements:
        mark, style = MARKS[statement.kind]
        table.add_row(Text(mark, style), statement.text)
    known, equal = len(c.settings.names), c.settings.num_equal
    if known:
        unknown = f", {len(c.settings.unknown)} unknown for some runs" if c.settings.unknown else ""
        table.add_row("", Text(f"{equal} settings are equal{unknown}", "dim"))
    return table


def _sizes(c: Comparison) -> RenderableType:
    assert c.descent is not None, "only called with one"
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for title in ("parameters", "validation", "training", "runs"):
        table.add_column(title, justify="left" if title == "runs" else "right")
    table.add_column("")
    worst = max(size.validation for size in c.descent.sizes)
    for size in c.descent.sizes:
        bar = "█" * round(24 * max(0.0, size.validation) / worst) if worst > 0 else ""
        train = _number(size.train) or "-"
        table.add_row(
            f"{size.num_parameters:,}", _number(size.validation), train, ", ".join(size.names), Text(bar, "cyan")
        )
    head = Text.assemble(("validation against size: ", "bold"), c.descent.text)
    return Group(head, Padding(table, (0, 0, 0, 2)))


def _best(pick: Pick | None, measures: Sequence[Measures]) -> set[int]:
    """The indexes of the best, unless all are equal; never a run whose loss is not finite at the end."""
    values = [None if pick is None else pick(numbers) for numbers in measures]
    known = [value for value in values if value is not None]
    if len(known) < 2 or min(known) == max(known):
        return set()
    sound = {i: v for i, v in enumerate(values) if v is not None and measures[i].not_finite_since is None}
    return {i for i, value in sound.items() if value == min(sound.values())}


def _level(level: Level | None, numbers: Measures) -> str:
    if level is None:
        return "" if numbers.not_finite_since is None else "not finite"
    digits = 4 if not level.error or not math.isfinite(level.error) else 0
    return f"{level.value:.4g}" if digits else f"{level.value:.4g}±{level.error:.1g}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _short(value: float | None) -> str:
    if value is None:
        return ""
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if name == 'k' else size):.3g} {name}"
    return f"{value:,.0f}"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else measured(seconds)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
