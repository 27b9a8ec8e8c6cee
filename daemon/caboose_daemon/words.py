"""Numbers, times and severities in the words and colours that every page of the terminal uses."""

import math
from typing import Any

from rich.text import Text

from caboose_daemon.demo.watcher import to_float

COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan", "ok": "green"}
MARKS = {"critical": "✗", "warning": "!", "info": "i", "ok": "✓"}
STATES = {"running": "green", "live": "green", "failed": "bold red", "lost": "yellow"} | dict.fromkeys(
    ("ended", "left", "known"), "dim"
)


def health(severity: str) -> Text:
    """A severity that is told apart without colours too."""
    return Text(f"{MARKS.get(severity, '?')} {severity}", COLOURS.get(severity, ""))


def state(name: str) -> Text:
    """How a job or a rank stands."""
    return Text(name, STATES.get(name, ""))


def figure(value: Any, digits: int = 4) -> str:
    """A number from the API; NaN and infinity by name, nothing where there was none."""
    if value is None:
        return "-"
    number = to_float(value)
    return f"{number:.{digits}g}" if math.isfinite(number) else str(value)


def duration(seconds: float | None) -> str:
    """About how long, in one unit."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 10 and unit != "s" else f"{value:.0f} {unit}"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.001 else "now"


def plural(num: int, noun: str) -> str:
    """A count with its noun."""
    return f"{num:,} {noun}{'' if num == 1 else 's'}"
