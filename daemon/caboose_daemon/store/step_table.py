"""The journal's table of steps, derived from `steps.columns`: columns, writing, reading, condensing.

Design
------
Rows are written and read by column name, never by position. An older journal that lacks a column gets it on
opening (`missing`); its old rows have NULL there (not reported). A journal with columns of a later version is read and
written without them.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from caboose_daemon.steps.columns import PART_COLUMNS, RATES, STEP_COLUMNS, Column, PartNumbers, StepSummary
from caboose_daemon.steps.named import NamedNumber

NAMES = tuple(column.name for column in STEP_COLUMNS)
_VALUES = attrgetter(*NAMES)
NAN_BITS = {column.name: column.nan_bit for column in STEP_COLUMNS if column.nan_bit}
SELECTED = ", ".join((*NAMES, "bad"))
"""The columns `to_summary` expects, in this order."""

CREATE = (
    "CREATE TABLE IF NOT EXISTS steps (job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, "
    + ", ".join(f"{column.name} {column.sql_type}" for column in STEP_COLUMNS)
    + ", bad INTEGER NOT NULL, PRIMARY KEY (job, attempt, step)) WITHOUT ROWID"
)
INSERT = (
    f"INSERT OR REPLACE INTO steps (job, {SELECTED}) "  # noqa: S608 - constants
    f"VALUES (?, {', '.join('?' * (len(NAMES) + 1))})"
)


PART_NAMES = tuple(column.name for column in PART_COLUMNS)
PART_BITS = {column.name: column.nan_bit for column in PART_COLUMNS if column.nan_bit}
CREATE_PARTS = (
    "CREATE TABLE IF NOT EXISTS part_steps (job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, "
    "attempt INTEGER NOT NULL, step INTEGER NOT NULL, part TEXT NOT NULL, "
    + ", ".join(f"{column.name} {column.sql_type}" for column in PART_COLUMNS)
    + ", bad INTEGER NOT NULL, PRIMARY KEY (job, attempt, step, part)) WITHOUT ROWID"
)
"""The steps of a job's parts; a job with one model has no rows here."""

CREATE_NAMED = (
    "CREATE TABLE IF NOT EXISTS named_steps (job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, "
    "attempt INTEGER NOT NULL, step INTEGER NOT NULL, source TEXT NOT NULL, name TEXT NOT NULL, value REAL, "
    "PRIMARY KEY (job, attempt, step, source, name)) WITHOUT ROWID"
)
"""The named numbers of steps and validations (see `steps.named`); NULL is a NaN."""


def named_columns(attempt: int, step: int, number: NamedNumber) -> dict[str, Any]:
    """The columns of a named number, without the job."""
    value = None if _is_nan(number.value) else number.value
    return {"attempt": attempt, "step": step, "source": number.source, "name": number.name, "value": value}


def part_columns(summary: StepSummary, part: PartNumbers) -> dict[str, Any]:
    """The columns of one part of a step by name, without the job."""
    values = {name: getattr(part, name) for name in PART_NAMES}
    bad = sum(bit for name, bit in PART_BITS.items() if _is_nan(values[name]))
    return {"attempt": summary.attempt, "step": summary.step, "part": part.name, **values, "bad": bad}


def part_with_nan(part: str, values: dict[str, Any], bad: int) -> PartNumbers:
    """The numbers of one part with these columns; `bad` as in `with_nan`."""
    return PartNumbers(part, **values | {name: float("nan") for name, bit in PART_BITS.items() if bad & bit})


def missing(existing: Sequence[str]) -> list[str]:
    """Statements that add the columns not in `existing`."""
    return [
        f"ALTER TABLE steps ADD COLUMN {column.name} {column.sql_type}"
        for column in STEP_COLUMNS
        if column.name not in existing
    ]


def to_row(summary: StepSummary) -> tuple[Any, ...]:
    """The values of `INSERT`, without the job."""
    return tuple(to_columns(summary).values())


def to_columns(summary: StepSummary) -> dict[str, Any]:
    """The columns of a step by name, without the job, in the order of `INSERT`."""
    values = dict(zip(NAMES, _VALUES(summary), strict=True))
    values["bad"] = sum(bit for name, bit in NAN_BITS.items() if _is_nan(values[name]))
    return values


def to_summary(row: Sequence[Any]) -> StepSummary:
    """A row of `SELECTED`."""
    *numbers, bad = row
    return with_nan(dict(zip(NAMES, numbers, strict=True)), bad)


def with_nan(values: dict[str, Any], bad: int) -> StepSummary:
    """The step with these columns; `bad` marks those that are NULL because they were NaN."""
    if bad:
        values |= {name: float("nan") for name, bit in NAN_BITS.items() if bad & bit}
    return StepSummary(**values)


def _is_nan(value: float | None) -> bool:
    return value is not None and value != value


INFINITY = "9e999"
"""SQLite's literal for infinity."""


def _is_bad(name: str) -> str:
    return f"(bad & {NAN_BITS[name]} OR coalesce(abs({name}) = {INFINITY}, 0))"


IS_BAD = f"({' OR '.join(_is_bad(name) for name in NAN_BITS)})"
"""Whether a number of the step is not finite."""
IS_BAD_LOSS = _is_bad("loss")


def _finite(name: str) -> str:
    return f"CASE WHEN abs({name}) < {INFINITY} THEN {name} END"


def _condensed(column: Column) -> dict[str, str]:
    curve = column.curve
    if curve is None:
        return {}
    value = _finite(column.name) if curve.is_finite_only else column.name
    if curve.fallback:
        value = f"coalesce({value}, {_finite(curve.fallback)})"
    first, *others = curve.aggregates
    return {column.name: f"{first}({value})"} | {f"{column.name}_{each}": f"{each}({value})" for each in others}


def _rate(name: str, count: str) -> dict[str, str]:
    """Samples over seconds, both summed over the bucket, as in the metrics."""
    each = f"{count} / step_seconds"
    return {
        name: f"sum({count}) FILTER (WHERE step_seconds > 0) / sum(step_seconds) FILTER (WHERE {count} IS NOT NULL)",
        f"{name}_min": f"min({each})",
        f"{name}_max": f"max({each})",
    }


NAMED_CONDENSED = {
    "source": "source",
    "name": "name",
    "step": "max(step)",
    "value": f"avg({_finite('value')})",
    "min": f"min({_finite('value')})",
    "max": f"max({_finite('value')})",
    "num_bad": f"sum(value IS NULL OR abs(value) = {INFINITY})",
    "num_steps": "count(*)",
}
"""The fields of one bucket of a named number's curve."""
CONDENSED = {
    "attempt": "attempt",
    "step": "max(step)",
    "time": "max(time)",
    "first_step": "min(step)",
    "first_time": "min(time)",
    **{name: sql for column in STEP_COLUMNS for name, sql in _condensed(column).items()},
    **{name: sql for rate, count in RATES.items() for name, sql in _rate(rate, count).items()},
    **{count: f"sum({count})" for count in RATES.values()},
    "num_bad": f"sum({IS_BAD})",
    "num_bad_losses": f"sum({IS_BAD_LOSS})",
    "num_steps": "count(*)",
}
"""The fields of one bucket of a curve, with the SQL that computes them."""
PART_CONDENSED = {
    "part": "part",
    "last": "max(step)",
    **{name: sql for column in PART_COLUMNS for name, sql in _condensed(column).items()},
    "num_bad": f"sum({IS_BAD})",
}
"""The same of a part; `last` is the last step of the bucket that it has numbers of."""
