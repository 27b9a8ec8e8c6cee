"""Parameters of which `make test` tries the first, and `make test-long` all the others too."""

from collections.abc import Iterable
from typing import Any

import pytest

LONG = (pytest.mark.slow, pytest.mark.long)


def seeds(num: int) -> list[Any]:
    """The seeds 0 to `num` - 1, of which all but the first are long."""
    return first_of(range(num))


def first_of(values: Iterable[Any]) -> list[Any]:
    """The values of a parameter (or tuples, of several), of which all but the first are long."""
    first, *others = values
    return [first, *(pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=LONG) for value in others)]
