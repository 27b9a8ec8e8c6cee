"""Seeds of tests over random runs: the first one is tried by `make test`, all of them by `make test-long`."""

from typing import Any

import pytest


def seeds(num: int) -> list[Any]:
    """The seeds 0 to `num` - 1, of which all but the first are long."""
    return [0, *(pytest.param(seed, marks=(pytest.mark.slow, pytest.mark.long)) for seed in range(1, num))]
