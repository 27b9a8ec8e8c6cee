"""A trial's chart as a figure, or written to a file; drawn by plotly or matplotlib, which the agent does not need."""

from pathlib import Path
from typing import Any

from caboose_plots import Chart, save


def show(chart: Chart, path: "str | Path | None" = None) -> Any:
    """Writes the chart if a path is given (.png, .svg, .html); else returns it as a plotly figure, for a notebook."""
    if path is not None:
        return save([chart], path)
    from caboose_plots.plotly_page import figure

    return figure(chart)
