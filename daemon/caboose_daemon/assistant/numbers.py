"""Numbers in answers: few digits, and non-finite ones by name, as in the daemon's API."""

import math
from typing import Any

Number = float | int | str | None
"""A number; "NaN", "Infinity" or "-Infinity"; null where it was not reported."""
DIGITS = 5


def short(value: Any) -> Number:
    """A number from the API with at most five digits; whole numbers stay exact."""
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return float(f"{number:.{DIGITS}g}")
