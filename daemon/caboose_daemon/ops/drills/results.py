"""Drill results in a file that grows drill by drill, so that a long measurement can be resumed."""

import datetime
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from caboose_daemon.ops.drills.catalogue import Drill
from caboose_daemon.ops.drills.judge import DrillOutcome


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One drill, over its seeds."""

    drill: Drill
    outcomes: tuple[DrillOutcome, ...]
    seconds: float
    measured: str = ""
    """When, in UTC."""

    @property
    def name(self) -> str:
        return self.drill.name


def now() -> str:
    """The time, to the minute."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")


def load(path: Path) -> dict[str, Result]:
    """The results in a file, by drill; empty without a file."""
    if not path.exists():
        return {}
    try:
        return {result.name: result for result in msgspec.json.decode(path.read_bytes(), type=list[Result])}
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is not a file of drill results: {error}") from None


def to_measure(
    chosen: list[Drill], known: dict[str, Result], *, is_part: bool, is_resumed: bool
) -> tuple[dict[str, Result], list[Drill]]:
    """Which results of a file are kept, and what is measured.

    A whole measurement starts over; a part replaces that part; a resumed one keeps the known results.
    """
    if is_resumed:
        return known, [drill for drill in chosen if drill.name not in known]
    names = {drill.name for drill in chosen}
    return ({name: result for name, result in known.items() if name not in names} if is_part else {}), chosen


def save(path: Path, results: Iterable[Result]) -> None:
    """Writes the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(list(results)), indent=1) + b"\n")
    os.replace(partial, path)
