"""How large an answer may be: a number of tokens per tool, and pages for what does not fit.

Design
------
Tokens depend on the model. A token is counted as three bytes of compact JSON: prose takes fewer tokens than that,
numbers and names about as many. A list is cut at the row that would exceed the budget, and states where the next page
begins. Rows are bounded where they are made, so that every page has at least one.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, TypeVar

from typing_extensions import TypedDict

BYTES_PER_TOKEN = 3
R = TypeVar("R")


class Page(TypedDict):
    """Which rows these are; `next_offset` is null on the last page."""

    offset: int
    total: int
    next_offset: int | None


def compact(value: Any) -> str:
    """As JSON, without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def tokens(value: Any) -> int:
    """How many tokens it takes, at most."""
    return math.ceil(len(compact(value).encode()) / BYTES_PER_TOKEN)


def paged(rows: Sequence[R], offset: int, budget: int) -> tuple[list[R], Page]:
    """The rows from `offset` on that fit into `budget` tokens, at least one, and which they are."""
    kept: list[R] = []
    left = budget
    for row in rows[offset:]:
        left -= tokens(row) + 1
        if kept and left < 0:
            break
        kept.append(row)
    end = offset + len(kept)
    return kept, {"offset": offset, "total": len(rows), "next_offset": end if end < len(rows) else None}
