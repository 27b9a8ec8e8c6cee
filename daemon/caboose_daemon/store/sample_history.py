"""Reads the history of samples from a journal, with every column ordered by the newest attempt's layers.

Design
------
A sample holds values by position. The names are in the description of its attempt. A later attempt may have another
model: its samples are matched by name, and layers that the newest model lacks are left out. Within an attempt the list
of modules only grows, so a shorter column is padded with unknown values.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from caboose_daemon.steps.masked import UNSEEN
from caboose_daemon.steps.samples.sample import MAX_ROWS, unpack
from caboose_daemon.steps.samples.stats import ORDER, STATS, Of
from caboose_wire import Layer, Module

Float64 = NDArray[np.float64]


class Model(msgspec.Struct, frozen=True):
    """The parts of a Hello that name the rows."""

    layers: tuple[Layer, ...] = ()
    modules: tuple[Module, ...] = ()

    def names(self, of: Of) -> list[str]:
        """Names of the rows with a history."""
        return [row.name for row in (self.layers if of == "layer" else self.modules)[:MAX_ROWS]]


@dataclass(frozen=True)
class StoredSample:
    """One sample, with the requested statistics."""

    attempt: int
    step: int
    time: float
    columns: dict[str, Float64]
    """By statistic, one number per row; negative if unknown."""


class SampleReader:
    """Reads one job's samples; the caller opens and closes the connection."""

    def __init__(self, connection: sqlite3.Connection, job: str) -> None:
        self._connection = connection
        self._job = job
        known = connection.execute(
            "SELECT name FROM sqlite_master WHERE name IN ('samples', 'descriptions')"
        ).fetchall()
        self._tables = {name for (name,) in known}
        self._newest, self.model = self._read_model("", ())
        """The newest attempt's."""
        self._names: dict[Of, list[str]] = {"layer": self.model.names("layer"), "module": self.model.names("module")}
        self._known_places: dict[tuple[int, Of], NDArray[np.intp]] = {}

    def _read_model(self, where: str, values: tuple[int, ...]) -> tuple[int, Model]:
        if "descriptions" not in self._tables:
            return 0, Model()
        row = self._connection.execute(
            f"SELECT attempt, body FROM descriptions JOIN jobs ON id = job WHERE name = ? {where} "  # noqa: S608 - ours
            "ORDER BY attempt DESC LIMIT 1",
            (self._job, *values),
        ).fetchone()
        try:
            return (0, Model()) if row is None else (row[0], msgspec.msgpack.decode(row[1], type=Model))
        except msgspec.MsgspecError:  # a row that cannot be read is one that is not there
            return 0, Model()

    def counts(self) -> dict[str, int]:
        """Number of samples by statistic."""
        if "samples" not in self._tables:
            return dict.fromkeys(STATS, 0)
        masks = self._connection.execute(
            "SELECT seen, count(*) FROM samples JOIN jobs ON id = job WHERE name = ? GROUP BY seen", (self._job,)
        ).fetchall()
        return {stat.name: sum(count for seen, count in masks if seen & stat.bit) for stat in STATS.values()}

    def samples(self, stats: Iterable[str], first: int, last: int) -> list[StoredSample]:
        """The samples of steps `first` to `last` with any of these statistics, oldest first."""
        if "samples" not in self._tables:
            return []
        wanted = [STATS[name] for name in stats]
        rows = self._connection.execute(
            "SELECT attempt, step, time, body FROM samples JOIN jobs ON id = job "
            "WHERE name = ? AND seen & ? AND step BETWEEN ? AND ? ORDER BY number",
            (self._job, sum(stat.bit for stat in wanted), first, last),
        )
        found = []
        for attempt, step, time, body in rows:
            columns = _unpacked(body)
            values = {s.name: self._reordered(columns[s.name], attempt, s.of) for s in wanted if s.name in columns}
            found.append(StoredSample(attempt, step, time, values))
        return found

    def execution_order(self) -> list[int]:
        """The newest model's modules in the order in which they last ran; those that did not run come last."""
        rows = list(range(min(len(self.model.modules), MAX_ROWS)))
        if "samples" not in self._tables:
            return rows
        found = self._connection.execute(
            "SELECT body FROM samples JOIN jobs ON id = job WHERE name = ? AND attempt = ? AND seen & ? "
            "ORDER BY number DESC LIMIT 1",
            (self._job, self._newest, STATS["activation_std"].bit),
        ).fetchone()
        place = _unpacked(found[0]).get(ORDER) if found is not None else None
        if place is None:
            return rows
        return sorted(rows, key=lambda row: (int(place[row]) if row < len(place) else len(rows) + 1, row))

    def _reordered(self, values: NDArray[np.floating], attempt: int, of: Of) -> Float64:
        places = self._places(attempt, of)
        if len(values) > len(places):
            values = values[: len(places)]
        reordered = np.full(len(self._names[of]), UNSEEN)
        to = places[: len(values)]
        reordered[to[to >= 0]] = values[to >= 0]
        return reordered

    def _places(self, attempt: int, of: Of) -> NDArray[np.intp]:
        """Positions of an attempt's rows in the newest model; -1 if it lacks them."""
        if (attempt, of) not in self._known_places:
            names = self._names[of]
            here = names if attempt == self._newest else self._read_model("AND attempt <= ?", (attempt,))[1].names(of)
            # an attempt without a description uses the one before it
            place = {name: row for row, name in enumerate(names)}
            found = range(len(names)) if here == names else [place.get(name, -1) for name in here]
            self._known_places[attempt, of] = np.array(found, dtype=np.intp)
        return self._known_places[attempt, of]


def _unpacked(body: bytes) -> Mapping[str, NDArray[np.floating]]:
    """The columns of a sample; none if it cannot be read."""
    try:
        return unpack(body)
    except (msgspec.MsgspecError, ValueError, TypeError):
        return {}
