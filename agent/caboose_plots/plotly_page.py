"""Charts as plotly figures, and as one page that opens offline."""

import importlib
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caboose_plots.chart import Chart, Line, Series
from caboose_plots.saving import INSTALL, PlotError

NOTE_WIDTH = 110
MODES = {"line": "lines", "dots": "markers", "line and dots": "lines+markers", "dashes": "markers"}
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body style="margin:0">{parts}</body></html>
"""


def write(charts: Sequence[Chart], path: Path) -> Any:
    """One page with all charts below each other; returns the last figure."""
    figures = [figure(chart) for chart in charts]
    parts = [
        made.to_html(full_html=False, include_plotlyjs=number == 0, default_height="480px" if len(charts) > 1 else None)
        for number, made in enumerate(figures)
    ]
    path.write_text(PAGE.format(title=charts[0].title, parts="\n".join(parts)), encoding="utf-8")
    return figures[-1]


def figure(chart: Chart) -> Any:
    """The chart as plotly's figure."""
    try:
        graph = importlib.import_module("plotly.graph_objects")
    except ModuleNotFoundError as error:
        raise PlotError(f"this plot needs plotly, which is not installed here: {INSTALL}") from error
    lines = textwrap.wrap(chart.note, NOTE_WIDTH)
    text = "".join([f"<b>{chart.title}</b>", *(f"<br><span style='font-size:12px'>{line}</span>" for line in lines)])
    made = graph.Figure(
        layout={
            "title": {"text": text, "x": 0.02, "xanchor": "left", "y": 0.97, "yanchor": "top", "yref": "container"},
            "xaxis": {"title": chart.x, "gridcolor": "#e6e9ed", "zeroline": False, "automargin": True},
            "yaxis": {"title": chart.y, "gridcolor": "#e6e9ed", "zeroline": False, "automargin": True},
            "plot_bgcolor": "white",
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1f2933"},
            "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
            "margin": {"l": 70, "r": 24, "t": 82 + 17 * len(lines), "b": 60},
            "hovermode": "x unified",
            "barmode": "overlay",
            "showlegend": len(chart.series) > 1,
        }
    )
    for series in chart.series:
        made.add_trace(_trace(graph, series))
    _set_axes(made, chart)
    for band in chart.bands:
        look = {"fillcolor": "#009e73", "opacity": 0.08, "line_width": 0}
        made.add_hrect(y0=band.low, y1=band.high, annotation_text=band.text, **look)
    for line in chart.lines:
        _add_line(made, line, is_log=chart.is_x_log)
    return made


def _trace(graph: Any, series: Series) -> Any:
    common = {"x": list(series.x), "y": list(series.y), "name": series.name}
    if series.kind == "bars":
        return graph.Bar(**common, marker={"color": series.color})
    marker: dict[str, Any] = {"color": series.color, "size": 5}
    if series.kind == "dashes":
        marker = {"color": series.color, "symbol": "line-ew-open", "size": 11, "line": {"width": 2}}
    line = {"color": series.color, "width": series.width, "dash": series.dash}
    return graph.Scatter(**common, mode=MODES[series.kind], marker=marker, line=line, connectgaps=False)


def _set_axes(made: Any, chart: Chart) -> None:
    if chart.is_x_log:
        made.update_xaxes(type="log", exponentformat="power", dtick=1)
    if chart.is_y_log:
        made.update_yaxes(type="log", exponentformat="power")
    if chart.y_range is not None:
        made.update_yaxes(range=[math.log10(end) if chart.is_y_log else end for end in chart.y_range])
    if chart.x_is_share:
        made.update_xaxes(tickformat=".0%")
    names = max((len(series.x) for series in chart.series if series.x and isinstance(series.x[0], str)), default=0)
    if names:
        made.update_xaxes(tickangle=-40, showticklabels=names <= 60)


def _add_line(made: Any, line: Line, *, is_log: bool) -> None:
    made.add_vline(x=line.x, line={"color": line.color, "dash": "dash"})
    made.add_annotation(
        x=math.log10(line.x) if is_log else line.x,  # which plotly wants as an exponent here
        yref="paper",
        y=1.0 if line.is_at_top else 0.0,
        yanchor="top" if line.is_at_top else "bottom",
        xanchor="left" if line.is_at_top else "right",
        showarrow=False,
        text=line.text,
        font={"color": line.color},
    )
