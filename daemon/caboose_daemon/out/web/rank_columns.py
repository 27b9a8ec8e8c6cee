"""The ranks of a job as columns, and the changes between two states of them.

Design
------
Thousands of ranks finish a step at once: most numbers of most ranks are new every second, and repeating a field name
for each of them costs more than the number. So each field is one column. A value shared by all ranks is sent once
(`all`), a change in few ranks only for those (`at`, `to`), and an unchanged column is omitted. Numbers are rounded to
the digits shown, and a recently seen rank has no time, so that unchanged values stay unchanged.
"""

from collections.abc import Sequence
from typing import Any

from caboose_daemon.jobs.job import Attempt
from caboose_daemon.out.api.json_shapes import Json, number
from caboose_daemon.steps.columns import RANK_COLUMNS

PLAIN = (
    "rank",
    "host",
    "pid",
    "state",
    "step",
    "num_missed",
    "num_dropped",
    "agent_state",
    "agent_failures",
    "error",
)
NUMBERS = tuple(column.name for column in RANK_COLUMNS)
"""Rounded columns."""
FIELDS = (*PLAIN, *NUMBERS, "heard")
LATELY_SECONDS = 5
"""A rank seen within this time has no `heard`: it would change every second without use."""

Row = tuple[Any, ...]


def rows(attempt: Attempt | None) -> list[Row]:
    """The fields of every rank, ordered by rank."""
    members = sorted(attempt.members.items()) if attempt is not None else []
    return [
        (
            rank,
            m.hello.host,
            m.hello.pid,
            m.state,
            m.step,
            m.num_missed,
            m.num_dropped,
            m.agent_state,
            m.num_failures,
            m.error,
            *(getattr(m.numbers, name) for name in NUMBERS),
            m.last_seen,
        )
        for rank, m in members
    ]


class RankColumns:
    """All ranks at one moment, comparable with another moment."""

    def __init__(self, of: Sequence[Row], now: float) -> None:
        columns = list(zip(*of, strict=True)) or [()] * len(FIELDS)
        plain, (*numbers, seen) = columns[: len(PLAIN)], columns[len(PLAIN) :]
        heard = tuple(None if now - time < LATELY_SECONDS else int(time) for time in seen)
        self.columns = [*plain, *map(_rounded, numbers), heard]

    def whole(self) -> Json:
        """Every column."""
        columns = zip(FIELDS, self.columns, strict=True)
        return {"is_whole": True, "columns": {name: _short(column) for name, column in columns}}

    def since(self, before: "RankColumns") -> Json:
        """The changed columns; all of them if the set of ranks changed."""
        if self.columns[0] != before.columns[0]:
            return self.whole()
        pairs = zip(FIELDS, before.columns, self.columns, strict=True)
        return {"columns": {name: _change(old, new) for name, old, new in pairs if old != new}}


def _rounded(values: Sequence[float | None]) -> tuple[float | str | None, ...]:
    """To four digits, as shown."""
    return tuple(None if value is None else number(float(f"{value:.4g}")) for value in values)


def _short(column: Sequence[Any]) -> Json:
    if len(column) > 1 and column.count(column[0]) == len(column):
        return {"all": column[0]}
    return {"to": column}


def _change(old: Sequence[Any], new: Sequence[Any]) -> Json:
    places = [place for place, (was, now) in enumerate(zip(old, new, strict=True)) if was != now]
    short = _short(new)
    if "all" in short or 2 * len(places) > len(new):
        return short
    return {"at": places, "to": [new[place] for place in places]}
