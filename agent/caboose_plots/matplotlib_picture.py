"""Charts as a picture, drawn by matplotlib without a display and without its global state."""

import importlib
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caboose_plots.chart import Chart, Line, Series

WIDTH, HEIGHT, DPI = 9.0, 4.6, 110
"""Inches of one chart, and dots of an inch in a PNG."""
NOTE_WIDTH = 105
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
GRID = "#e6e9ed"
MAX_NAMES = 60


def write(charts: Sequence[Chart], path: Path) -> Any:
    """One picture with all charts below each other; returns the figure."""
    made = figure(charts)
    made.savefig(path, dpi=DPI)
    return made


def figure(charts: Sequence[Chart]) -> Any:
    """The charts as matplotlib's figure."""
    figures = importlib.import_module("matplotlib.figure")
    heights = [HEIGHT + (1.4 if _names(chart) else 0.0) for chart in charts]
    made = figures.Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    rows = made.subplots(len(charts), 1, squeeze=False, height_ratios=heights)
    for axes, chart in zip((row[0] for row in rows), charts, strict=True):
        _draw(axes, chart)
    return made


def _draw(axes: Any, chart: Chart) -> None:
    note = "\n".join(textwrap.wrap(chart.note, NOTE_WIDTH))
    room = 8 + 13 * (note.count("\n") + bool(note))
    axes.set_title(chart.title, loc="left", fontsize=12, fontweight="bold", pad=room)
    if note:
        axes.text(0, 1.015, note, transform=axes.transAxes, fontsize=9, color="#1f2933", va="bottom")
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    axes.grid(visible=True, color=GRID)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if chart.is_x_log:
        axes.set_xscale("log")
    if chart.is_y_log:
        axes.set_yscale("log")
    for series in chart.series:
        _add(axes, series)
    for band in chart.bands:
        axes.axhspan(band.low, band.high, color="#009e73", alpha=0.08, label=band.text)
    if chart.y_range is not None:
        axes.set_ylim(*chart.y_range)
    for line in chart.lines:
        _add_line(axes, line)
    if chart.x_is_share:
        axes.xaxis.set_major_formatter(lambda value, _place: f"{value:.0%}")
    if _names(chart):
        axes.tick_params(axis="x", labelrotation=60, labelsize=8, labelbottom=_names(chart) <= MAX_NAMES)
    if len(chart.series) + len(chart.bands) > 1:
        axes.legend(frameon=False, fontsize=9)


def _add(axes: Any, series: Series) -> None:
    y = [math.nan if value is None else value for value in series.y]
    if series.kind == "bars":
        axes.bar(series.x, y, color=series.color, label=series.name)
    elif series.kind in ("dots", "dashes"):
        marker = {"dots": ".", "dashes": "_"}[series.kind]
        axes.plot(series.x, y, linestyle="", marker=marker, markersize=8, color=series.color, label=series.name)
    else:
        marker = "." if series.kind == "line and dots" else ""
        style = {"linestyle": DASHES[series.dash], "linewidth": series.width, "marker": marker}
        axes.plot(series.x, y, color=series.color, label=series.name, **style)


def _add_line(axes: Any, line: Line) -> None:
    axes.axvline(line.x, color=line.color, linestyle="--", linewidth=1)
    place = (line.x, 0.98 if line.is_at_top else 0.02)
    side, end = ("left", "top") if line.is_at_top else ("right", "bottom")
    transform = axes.get_xaxis_transform()
    axes.text(*place, f" {line.text} ", transform=transform, color=line.color, fontsize=9, ha=side, va=end)


def _names(chart: Chart) -> int:
    """How many names the x axis has, if it has names."""
    return max((len(series.x) for series in chart.series if series.x and isinstance(series.x[0], str)), default=0)
