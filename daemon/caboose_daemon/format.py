"""Numbers, durations and places as text, for the terminal, the HTML report and log lines."""

import math
import re
from typing import Any

PARSED = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
MAX_LAYERS = 3
MAX_RANKS = 8


def to_float(value: Any) -> float:
    """A number from the API; NaN if missing."""
    if value is None:
        return float("nan")
    return PARSED[value] if isinstance(value, str) else float(value)


def figure(value: Any, digits: int = 4) -> str:
    """A number from the API as text; NaN and infinity by name, - if missing."""
    if value is None:
        return "-"
    number = to_float(value)
    return amount(number, digits) if math.isfinite(number) else str(value)


def amount(value: float, digits: int = 3) -> str:
    """A number as people write it, with about so many digits: 35,300; 8.21; 0.000741; 3e-5; 1.2e13."""
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return f"{float(text):,.0f}" if abs(value) >= 10_000 else text
    if 1 <= abs(value) < 1e12:
        return f"{float(text):,.0f}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}"


def seconds(value: float | None) -> str:
    """A measured time as people write it: 8.21 ms, 1.1 s, 2.5 min."""
    if value is None or not math.isfinite(value):
        return "-"
    if value < 1:
        return f"{amount(1000 * value)} ms" if value >= 1e-6 else f"{amount(1e6 * value)} µs"
    return f"{amount(value)} s" if value < 120 else duration(value)


def duration(seconds: float | None) -> str:
    """A rounded duration in one unit."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 10 and unit != "s" else f"{value:.0f} {unit}"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.001 else "now"


def plural(num: int, noun: str) -> str:
    return f"{num:,} {noun}{'' if num == 1 else 's'}"


def witness(found: dict[str, Any]) -> str:
    """The first witness as text."""
    ranks, layers, lead = found["ranks"], found["layers"], found["steps_before_loss"]
    parts = []
    if ranks:
        named = ", ".join(map(str, ranks[:MAX_RANKS])) + (" ..." if len(ranks) > MAX_RANKS else "")
        host = f" on {found['host']}" if found["host"] else ""
        parts.append(f"rank{'s' if len(ranks) > 1 else ''} {named}{host}")
    if layers:
        more = f" and {len(layers) - MAX_LAYERS} more" if len(layers) > MAX_LAYERS else ""
        parts.append(", ".join(layers[:MAX_LAYERS]) + more)
    if found["phase"]:
        parts.append(f"in the {found['phase']} phase")
    if lead:
        parts.append(f"{lead} step{'s' if lead > 1 else ''} before the loss moved")
    return ", ".join(parts)


_CONTROLS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Characters that a terminal obeys instead of showing, and those that reverse text; without tab and newline."""


def printable(text: str) -> str:
    """The text with control characters escaped, as Python writes them; lines stay lines."""
    return text if text.isprintable() else _CONTROLS.sub(_escaped, text)


def one_line(text: str) -> str:
    """The same, in one line."""
    return printable(text).replace("\n", "\\n").replace("\t", " ")


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
