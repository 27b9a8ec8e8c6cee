"""Faults of graded size spliced into real healthy logs, at the log's own cadence and noise.

Design
------
A spliced log is the real one up to a random place, and from there on the same log with one fault: the loss, the
validation loss or the norm is changed, never generated, so that noise, cadence, schedule and gaps stay those of the
run. What a fault does is stated as a ratio to the level (a running median), so one size means the same in every log.
Thinned logs are means over groups of rows, as loggers write them. The random choices come from the seed and the log's
name only: they do not depend on the order or the number of the logs.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.offline.replay.logs import Column, Log

CADENCES = (1, 10, 100)
Array = NDArray[np.float64]
MIN_POINTS = 30
"""Points that a log must have at a cadence to be used at it."""
AGAIN = 4
MAX_POINTS = 1500
"""Rows of a longer log that are used, from its start."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault in one size."""

    kind: str
    size: float
    points: int
    """How many points it lasts; 0 means to the end."""
    split: str = "tune"
    """Half of the sizes are for tuning; `held` ones are only reported."""

    @property
    def label(self) -> str:
        lasting = "to the end" if not self.points else f"{self.points} points" if self.points > 1 else "1 point"
        return f"{self.kind} {self.size:g}, {lasting}"


@dataclass(frozen=True)
class Case:
    """A log with a fault in it."""

    log: Log
    fault: Fault
    onset: int
    """The row at which the fault begins."""
    run: str
    thinned: int


FAULTS = (
    *(Fault("spike", size, points) for size in (1.2, 1.5, 2, 3, 10, 100) for points in (1, 3, 10, 30, 100, 200)),
    *(Fault("divergence", size, 0) for size in (1.1, 1.25, 1.5, 2, 5, 20)),
    *(Fault("fast divergence", size, 0) for size in (1.1, 1.25, 1.5, 2, 5, 20)),
    *(Fault("plateau", size, 0) for size in (0.0, 0.02, 0.05, 0.1, 0.2)),
    *(Fault("overfitting", size, 0) for size in (1.05, 1.1, 1.2, 1.5, 2)),
    *(Fault("oscillation", size, 0) for size in (0.05, 0.1, 0.2, 0.5, 0.9)),
    *(Fault("nan", math.nan, points) for points in (1, 3, 0)),
    *(Fault("norm spike", size, points) for size in (3, 10, 100) for points in (1, 3, 10)),
)


def random_of(seed: int, *names: object) -> np.random.Generator:
    """A generator that depends on nothing but these names."""
    digest = hashlib.sha256(repr((seed, *names)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def thinned(log: Log, every: int) -> Log:
    """Each group of `every` rows as one: means of what was logged, the last step, the last learning rate."""
    if every == 1:
        return _cut(log, MAX_POINTS)
    num = min(len(log.steps) // every, MAX_POINTS)
    columns = {}
    for name, column in log.columns.items():
        values = column.values[: num * every].reshape(num, every)
        has = column.is_logged[: num * every].reshape(num, every)
        count = has.sum(axis=1)
        total = np.where(has, values, 0.0).sum(axis=1)
        mean = np.divide(total, count, out=np.zeros(num), where=count > 0)
        columns[name] = Column(
            values[:, -1].copy() if name == "lr" else mean, has[:, -1].copy() if name == "lr" else count > 0
        )
    return Log(file=log.file, steps=log.steps[: num * every].reshape(num, every)[:, -1].copy(), columns=columns)


def _cut(log: Log, num: int) -> Log:
    columns = {name: Column(c.values[:num], c.is_logged[:num]) for name, c in log.columns.items()}
    return Log(file=log.file, steps=log.steps[:num], columns=columns)


def level_of(values: Array, has: NDArray[np.bool_]) -> Array:
    """The running median of what was logged, for every row; 9 values wide, at most an eighth of the log."""
    seen = values[has & np.isfinite(values)]
    if not len(seen):
        return np.zeros(len(values))
    half = max(1, min(4, len(seen) // 16))
    padded = np.concatenate([seen[:half][::-1], seen, seen[-half:][::-1]])
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)
    place = np.clip(np.cumsum(has & np.isfinite(values)) - 1, 0, len(smooth) - 1)
    return np.asarray(smooth[place], dtype=np.float64)


def splice(log: Log, fault: Fault, random: np.random.Generator) -> tuple[Log, int] | None:
    """The log with the fault, and its onset; None where this log cannot have it."""
    num = len(log.steps)
    low, high = (0.0, 0.05) if fault.kind == "plateau" else (0.3, 0.7)
    onset = int(random.uniform(low, high) * num)
    last = num if not fault.points else onset + fault.points
    if last > num or num < MIN_POINTS:
        return None
    target = {"overfitting": "val_loss", "norm spike": "grad_norm"}.get(fault.kind, "loss")
    column = log.columns.get(target)
    if (
        column is None
        or not column.is_logged[onset:last].any()
        or not np.isfinite(column.values[column.is_logged]).all()
    ):
        return None
    if (column.values[column.is_logged] <= 0).any():
        return None
    changed = _CHANGES[fault.kind](log, column, fault, slice(onset, last), random)
    if changed is None:
        return None
    columns: Mapping[str, Column] = {**log.columns, **changed}
    return replace(log, columns=dict(columns)), onset


def _changed(column: Column, where: slice, values: Array) -> Column:
    whole = column.values.copy()
    whole[where] = values
    return Column(whole, column.is_logged)


Changed = dict[str, Column] | None


def _spike(log: Log, column: Column, fault: Fault, where: slice, random: np.random.Generator) -> Changed:
    """The loss jumps to `size` times its level and comes back geometrically."""
    num = where.stop - where.start
    share = np.exp(-2.0 * np.arange(num) / max(num, 1)) if num > 1 else np.ones(1)
    return {"loss": _changed(column, where, column.values[where] * (1.0 + (fault.size - 1.0) * share))}


def _divergence(log: Log, column: Column, fault: Fault, where: slice, random: np.random.Generator) -> Changed:
    """The level rises steadily to `size` times that at the onset, at the end of the run."""
    level = level_of(column.values, column.is_logged)
    rise = 1.0 + (fault.size - 1.0) * np.linspace(0.0, 1.0, where.stop - where.start)
    return {"loss": _changed(column, where, column.values[where] / level[where] * level[where.start] * rise)}


def _fast_divergence(log: Log, column: Column, fault: Fault, where: slice, random: np.random.Generator) -> Changed:
    """The level rises to `size` times that at the onset within ten points, and stays."""
    level = level_of(column.values, column.is_logged)
    rise = 1.0 + (fault.size - 1.0) * np.minimum(1.0, np.arange(where.stop - where.start) / 10.0)
    return {"loss": _changed(column, where, column.values[where] / level[where] * level[where.start] * rise)}


def _plateau(log: Log, column: Column, fault: Fault, where: slice, random: np.random.Generator) -> Changed:
    """From near its start on the loss stays at a level that has `size` of the improvement to the run's own best."""
    level = level_of(column.values, column.is_logged)
    first, best = level[0], float(level.min())
    if first < 1.5 * best:
        return None  # the run itself hardly fell
    target = first - fault.size * (first - best)
    reached = np.maximum(level, target)
    whole = column.values / level * reached
    changed = {"loss": Column(whole, column.is_logged)}
    val = log.columns.get("val_loss")
    if val is not None:
        val_level = level_of(val.values, val.is_logged)
        safe = np.where(val_level > 0, val_level, 1.0)
        changed["val_loss"] = Column(val.values / safe * np.maximum(val_level, target * safe[0] / first), val.is_logged)
    return changed


def _overfitting(log: Log, column: Column, fault: Fault, where: slice, random: np.random.Generator) -> Changed:
    """The validation loss rises steadily to `size` times its level at the onset; the training loss is untouched."""
    if column.is_logged[where].sum() < 6 or column.is_logged[: where.start].sum() < 3:
        return None
    return {"val_loss": _divergence(log, column, fault, where, random)["loss"]}  # type: ignore[index]


def _oscillation(log: Log, column: Column, fault: Fault, where: slice, random: np.random.Generator) -> Changed:
    """A wave of `size` times the level, with a period of 2 to 32 points, for at least 60 points."""
    num = where.stop - where.start
    period = float(2 ** random.uniform(1.0, 5.0)) if num >= 200 else float(2 ** random.uniform(1.0, 2.5))
    if num < 60 or num < 12 * period:
        return None
    phase = random.uniform(0.0, 2.0 * np.pi)
    wave = 1.0 + fault.size * np.sin(2.0 * np.pi * np.arange(num) / period + phase)
    return {"loss": _changed(column, where, column.values[where] * np.maximum(wave, 0.02))}


def _nan(log: Log, column: Column, fault: Fault, where: slice, random: np.random.Generator) -> Changed:
    return {"loss": _changed(column, where, np.full(where.stop - where.start, np.nan))}


def _norm_spike(log: Log, column: Column, fault: Fault, where: slice, random: np.random.Generator) -> Changed:
    return {"grad_norm": _changed(column, where, column.values[where] * fault.size)}


Change = Callable[[Log, Column, Fault, slice, np.random.Generator], Changed]
_CHANGES: dict[str, Change] = {
    "spike": _spike,
    "divergence": _divergence,
    "fast divergence": _fast_divergence,
    "plateau": _plateau,
    "overfitting": _overfitting,
    "oscillation": _oscillation,
    "nan": _nan,
    "norm spike": _norm_spike,
}


def cases(
    logs: Mapping[str, Log],
    faults: tuple[Fault, ...],
    *,
    per_fault: int,
    seed: int,
    cadences: tuple[int, ...] = CADENCES,
) -> Iterator[Case]:
    """For each fault and cadence, `per_fault` cases: logs drawn at random, each with the fault at a random place.

    Where fewer logs can have it, each is used up to `AGAIN` times, at other places.
    """
    for every in cadences:
        known = {name: thin for name, log in logs.items() if len((thin := thinned(log, every)).steps) >= MIN_POINTS}
        for fault in faults:
            names = sorted(known)
            random_of(seed, fault.label, every).shuffle(names)
            found = 0
            for again, name in ((again, name) for again in range(AGAIN) for name in names):
                if found >= per_fault:
                    break
                names_of_case = (fault.label, every, name, again) if again else (fault.label, every, name)
                spliced = splice(known[name], fault, random_of(seed, *names_of_case))
                if spliced is not None:
                    found += 1
                    yield Case(spliced[0], fault, spliced[1], name, every)
