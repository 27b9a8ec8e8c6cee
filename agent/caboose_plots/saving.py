"""Writes charts to a file whose name ends in .html, .png or .svg."""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caboose_plots.chart import Chart

PAGES, PICTURES = (".html", ".htm"), (".png", ".svg")
INSTALL = "pip install 'caboose[plots]'"


class PlotError(ValueError):
    """A chart cannot be written as asked; the message is one line."""


def check_path(path: "str | Path") -> str:
    """The ending of the name, if a chart can be written to it with what is installed here."""
    ending = Path(path).suffix.lower()
    if ending not in (*PAGES, *PICTURES):
        raise PlotError(f"{path}: give a name that ends in .png, .svg or .html")
    needed = "plotly" if ending in PAGES else "matplotlib"
    if importlib.util.find_spec(needed) is None:
        other = ".png or .svg" if ending in PAGES else ".html"
        raise PlotError(f"{path}: {ending} needs {needed}, which is not installed here: {INSTALL}, or write {other}")
    if not Path(path).resolve().parent.is_dir():
        raise PlotError(f"{path}: there is no folder {Path(path).parent}")
    return ending


def save(charts: Sequence[Chart], path: "str | Path") -> Any:
    """The figure that was written: plotly's for a page, matplotlib's for a picture."""
    ending = check_path(path)
    name = "plotly_page" if ending in PAGES else "matplotlib_picture"
    try:
        return importlib.import_module(f"caboose_plots.{name}").write(charts, Path(path))
    except OSError as error:
        raise PlotError(f"{path}: {error.strerror or error}") from None
