"""The style of the trials' plots, with plotly if it is installed; the agent itself does not need it."""

import importlib
import textwrap
from pathlib import Path
from typing import Any

LINE, MARK, FAINT, BAD = "#0072b2", "#d55e00", "#9aa5b1", "#cc3311"
"""Distinguishable for colour-blind readers (Okabe and Ito's palette)."""
NOTE_WIDTH = 110


def figure(title: str, x: str, y: str, *, note: str = "") -> tuple[Any, Any]:
    """An empty figure with titles, and plotly's graph objects to fill it with."""
    try:
        # By name, so that plotly is no dependency of the agent.
        graph = importlib.import_module("plotly.graph_objects")
    except ModuleNotFoundError as error:
        raise RuntimeError("plots need plotly, which is not installed here: pip install plotly") from error
    lines = textwrap.wrap(note, NOTE_WIDTH)
    text = "".join([f"<b>{title}</b>", *(f"<br><span style='font-size:12px'>{line}</span>" for line in lines)])
    made = graph.Figure(
        layout={
            "title": {"text": text, "x": 0.02, "xanchor": "left", "y": 0.97, "yanchor": "top", "yref": "container"},
            "xaxis": {"title": x, "gridcolor": "#e6e9ed", "zeroline": False, "automargin": True},
            "yaxis": {"title": y, "gridcolor": "#e6e9ed", "zeroline": False, "automargin": True},
            "plot_bgcolor": "white",
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1f2933"},
            "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
            "margin": {"l": 70, "r": 24, "t": 82 + 17 * len(lines), "b": 60},
            "hovermode": "x unified",
        }
    )
    return made, graph


def finish(made: Any, path: "str | Path | None") -> Any:
    """The figure; written as one page that opens offline, if a path is given."""
    if path is not None:
        if Path(path).suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"plot({str(path)!r}): plots are pages; give a name that ends in .html")
        made.write_html(path, include_plotlyjs=True)
    return made
