"""Charts, described once and drawn by plotly (HTML) or matplotlib (PNG, SVG), whichever is installed.

Imports neither on its own; both the agent's tools and the daemon's commands use it.
"""

from caboose_plots.chart import BAD, FAINT, LINE, MARK, OWN, PALETTE, Band, Chart, Line, Series
from caboose_plots.saving import PlotError, check_path, save

__all__ = [
    "BAD",
    "FAINT",
    "LINE",
    "MARK",
    "OWN",
    "PALETTE",
    "Band",
    "Chart",
    "Line",
    "PlotError",
    "Series",
    "check_path",
    "save",
]
