"""The charts of one or several runs: loss, learning rate, loss against rate, gradient norm, gradients by layer.

Design
------
A chart needs at most a few thousand points, so longer curves are condensed: of each bucket the mean is drawn, and of
the raw loss its highest value, so that a spike of one step stays visible. The moving average covers the last `window`
logged values, which shows a trend with a known delay; nothing is read from values that come later.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.diagnosis.recent_numbers import GRADIENT_NORM
from caboose_daemon.offline.runs.run import Floats, Run
from caboose_plots import FAINT, LINE, MARK, PALETTE, Band, Chart, Series

MAX_POINTS = 2000
WINDOW_SHARE = 0.02
"""Of the logged values, in the moving average, where no window is given."""
MIN_WINDOW = 5
Steps = NDArray[np.int64]


def charts(runs: Sequence[Run], what: Sequence[str] = (), window: int | None = None) -> list[Chart]:
    """The charts of these names, or all that the runs have data for, in their order."""
    made = [CHARTS[name](runs, window) for name in what or CHARTS]
    return [chart for chart in made if chart is not None]


def moving_average(values: Floats, window: int) -> Floats:
    """Of the last `window` values; of fewer at the beginning."""
    total = np.cumsum(np.concatenate(([0.0], values)))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - window)
    average: Floats = (total[ends] - total[begins]) / (ends - begins)
    return average


def _window(num: int, given: int | None) -> int:
    return given if given is not None else max(MIN_WINDOW, round(WINDOW_SHARE * num))


def _loss(runs: Sequence[Run], window: int | None) -> Chart | None:
    series: list[Series] = []
    notes: list[str] = []
    for number, run in enumerate(runs):
        steps, values = run.curve("loss")
        if not len(values):
            continue
        width = _window(len(values), window)
        before, color = _prefix(run, runs), PALETTE[number % len(PALETTE)]
        if len(runs) == 1:
            series.append(_series("loss", steps, values, np.max, color=FAINT, width=1.0))
        series.append(_series(f"{before}moving average of {width}", steps, moving_average(values, width), color=color))
        validations = [(step, value) for step, value, _ in run.validations if np.isfinite(value)]
        if validations:
            name = f"{before}validation"
            drawn = MARK if len(runs) == 1 else color
            series.append(Series(name, *_columns(validations), "line and dots", drawn, "dash"))
            notes.append(_gap(before, float(moving_average(values, width)[-1]), validations[-1][1]))
        elif len(runs) == 1:
            notes.append("no validation loss in this run")
    bad = [f"{_prefix(r, runs)}loss not finite at {int((r.num_bad > 0).sum())} steps" for r in runs if r.num_bad.any()]
    return _chart("Loss", "loss", series, "; ".join([*notes, *bad]), is_y_log=_can_be_log(series))


def _gap(before: str, train: float, validation: float) -> str:
    text = f"{before}last validation {validation:.4g}, training {train:.4g}"
    return f"{text}, ratio {validation / train:.3g}" if train > 0 else text


def _lr(runs: Sequence[Run], _window: int | None) -> Chart | None:
    return _chart("Learning rate", "learning rate", _curves(runs, "lr", np.max))


def _gradients(runs: Sequence[Run], _window: int | None) -> Chart | None:
    series = _curves(runs, "grad_norm", np.max)
    low, high = GRADIENT_NORM
    note = f"the band, {low:g} to {high:g}, is usual; for orientation only"
    chart = _chart("Gradient norm", "gradient norm", series, note, is_y_log=_can_be_log(series))
    return None if chart is None else _with_band(chart, Band(low, high, "usual"))


def _lr_loss(runs: Sequence[Run], window: int | None) -> Chart | None:
    """The loss over the rate of the same step: a range test, or where in a schedule the loss falls."""
    series = []
    for number, run in enumerate(runs):
        loss, rate = run.curves.get("loss"), run.curves.get("lr")
        if loss is None or rate is None:
            continue
        keep = run.surviving & np.isfinite(loss) & np.isfinite(rate) & (rate > 0)
        if len(np.unique(rate[keep])) < 2:
            continue
        smooth = moving_average(loss[keep], _window(int(keep.sum()), window))
        rows = np.linspace(0, len(smooth) - 1, min(len(smooth), MAX_POINTS)).astype(int)
        color, name = PALETTE[number % len(PALETTE)], f"{_prefix(run, runs)}moving average"
        series.append(Series(name, rate[keep][rows].tolist(), smooth[rows].tolist(), "line", color))
    if not series:
        return None
    return Chart("Loss against learning rate", "learning rate", "loss", series, is_x_log=True)


def _flow(runs: Sequence[Run], _window: int | None) -> Chart | None:
    """The last gradient norm of each layer."""
    found = [run for run in runs if len(run.layer_norms) > 1]
    if not found:
        return None
    series = []
    for number, run in enumerate(found):
        heights = [value if value > 0 and np.isfinite(value) else None for value in run.layer_norms.values()]
        name = f"{_prefix(run, found)}gradient norm"
        kind, color = ("bars", LINE) if len(found) == 1 else ("line and dots", PALETTE[number % len(PALETTE)])
        series.append(Series(name, list(run.layer_norms), heights, kind, color))  # type: ignore[arg-type]
    ratios = [_spread(run) for run in found]
    note = "; ".join(
        f"{_prefix(run, found)}largest over smallest {r:,.3g}" for run, r in zip(found, ratios, strict=True)
    )
    note += "; within 100 is usual, for orientation only"
    return Chart("Gradient flow", "layer, from input to output", "gradient norm", series, note=note, is_y_log=True)


CHARTS: dict[str, Callable[[Sequence[Run], int | None], Chart | None]] = {
    "loss": _loss,
    "lr": _lr,
    "lr-loss": _lr_loss,
    "gradients": _gradients,
    "flow": _flow,
}
"""By the names of `--what`."""


def _spread(run: Run) -> float:
    sizes = [value for value in run.layer_norms.values() if value > 0 and np.isfinite(value)]
    return max(sizes) / min(sizes) if sizes else float("nan")


def _curves(runs: Sequence[Run], name: str, how: Any) -> list[Series]:
    found = []
    for number, run in enumerate(runs):
        steps, values = run.curve(name)
        if len(values):
            label = run.name if len(runs) > 1 else name.replace("_", " ")
            found.append(_series(label, steps, values, how, color=PALETTE[number % len(PALETTE)]))
    return found


def _series(name: str, steps: Steps, values: Floats, how: Any = np.mean, *, color: str, width: float = 2.0) -> Series:
    """A curve of at most `MAX_POINTS` points."""
    size = max(1, -(-len(values) // MAX_POINTS))
    rows = range(0, len(values), size)
    x = [int(steps[min(row + size, len(steps)) - 1]) for row in rows]
    y = [float(how(values[row : row + size])) for row in rows]
    return Series(name, x, y, "line", color, width=width)


def _chart(title: str, y: str, series: Sequence[Series], note: str = "", *, is_y_log: bool = False) -> Chart | None:
    return Chart(title, "step", y, series, note=note, is_y_log=is_y_log) if series else None


def _with_band(chart: Chart, band: Band) -> Chart:
    return Chart(chart.title, chart.x, chart.y, chart.series, chart.note, bands=(band,), is_y_log=chart.is_y_log)


def _can_be_log(series: Sequence[Series]) -> bool:
    values = [value for each in series for value in each.y if value is not None]
    return bool(values) and min(values) > 0 and max(values) > 10 * min(values)


def _prefix(run: Run, runs: Sequence[Run]) -> str:
    return f"{run.name}: " if len(runs) > 1 else ""


def _columns(pairs: Sequence[tuple[int, float]]) -> tuple[list[float], list[float | None]]:
    return [float(step) for step, _ in pairs], [value for _, value in pairs]
