"""Keeps the buckets of whole curves: a complete bucket never changes, so opening a long run again costs only its end.

Design
------
Kept per job, attempt and width, for the few curves that were read last. Only buckets that lie within the attempt's
first and last step are kept: the retention removes steps from the front, and new ones come at the end. A job's number
may be used again after it was deleted, so its time of creation belongs to the key. Used under its reader's lock.
"""

from collections import OrderedDict
from typing import Any

MAX_CURVES = 16
"""Of 1,000 buckets each, about 1 MB."""
LEAST_WIDTH = 16
"""Narrower buckets are read faster than they are worth keeping."""

Buckets = dict[int, Any]
"""By their first step."""


class BucketCache:
    """The buckets of the curves read last."""

    def __init__(self) -> None:
        self._curves: OrderedDict[tuple[Any, ...], Buckets] = OrderedDict()

    def of(self, width: int, *curve: Any) -> Buckets | None:
        """What is kept of this curve, to be read and added to; None for one that is not kept."""
        if width < LEAST_WIDTH:
            return None
        key = (width, *curve)
        self._curves[key] = self._curves.pop(key, {})
        if len(self._curves) > MAX_CURVES:
            self._curves.popitem(last=False)
        return self._curves[key]
