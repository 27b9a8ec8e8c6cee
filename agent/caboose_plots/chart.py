"""What a chart shows, apart from how it is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LINE, MARK, FAINT, BAD, OWN = "#0072b2", "#d55e00", "#9aa5b1", "#cc3311", "#52606d"
"""Distinguishable for colour-blind readers (Okabe and Ito's palette)."""
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#52606d")
Kind = Literal["line", "dots", "line and dots", "bars", "dashes"]
Dash = Literal["solid", "dash", "dot", "dashdot"]


@dataclass(frozen=True, slots=True)
class Series:
    """Values that belong together."""

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float | None]
    """None where there is no value."""
    kind: Kind = "line"
    color: str = LINE
    dash: Dash = "solid"
    width: float = 2.0


@dataclass(frozen=True, slots=True)
class Line:
    """A vertical line with a name."""

    x: float
    text: str
    color: str = MARK
    is_at_top: bool = True
    """Where its name is."""


@dataclass(frozen=True, slots=True)
class Band:
    """A horizontal band, for orientation."""

    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: what is said about it, its axes and its values."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    note: str = ""
    lines: Sequence[Line] = ()
    bands: Sequence[Band] = ()
    is_x_log: bool = False
    is_y_log: bool = False
    y_range: tuple[float, float] | None = None
    x_is_share: bool = False
    """Whether x is shown in percent."""
