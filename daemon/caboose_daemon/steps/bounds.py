"""Numbers that cannot be calculated with: too large ones count as infinite, times that cannot be as unknown.

Design
------
Rules square, sum and extrapolate what ranks report. Python raises OverflowError where a result does not fit a float,
and a step that raises is not judged. No training has a loss or a norm beyond `LIMIT`: one that has it has diverged, and
rules know how to judge an infinite number. Arrays are float32 and cannot be as large. Times are divided by: a phase
that is negative or infinite, and a step that takes less than `SHORTEST_SECONDS`, are unknown.

Called once per report, on the loop's thread: a report within the limit is looked at, and not copied.
"""

import math
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import astuple

from caboose_wire import Phases, StepReport

LIMIT = 1e100
"""Its square, times any number of ranks or steps, is a float."""
SHORTEST_SECONDS = 1e-9
FIELDS = ("loss", "local_grad_norm", "agent_seconds")
PARTS = {
    "clipping": ("max_norm", "total_norm"),
    "scaler": ("scale",),
    "batch": ("lowest", "highest"),
}
"""The numbers of the structs in a report."""


def infinite_beyond(value: float) -> float:
    """The number; infinite if it is beyond the limit."""
    return value if -LIMIT <= value <= LIMIT or math.isnan(value) else math.copysign(math.inf, value)


def bounded(report: StepReport) -> StepReport:
    """The report, with infinities in the place of numbers beyond the limit."""
    return report if _is_within(report) else _bounded(report)


def _is_within(report: StepReport) -> bool:
    """Whether there is nothing to change. For every report: without a call for each number."""
    for value in (report.loss, report.local_grad_norm, report.agent_seconds, *report.lr):
        if value is not None and not -LIMIT <= value <= LIMIT:
            return False
    if report.metrics and _is_beyond(report.metrics.values()):
        return False
    phases = report.phases
    if phases is not None:
        if not SHORTEST_SECONDS <= phases.total <= LIMIT:
            return False
        for seconds in astuple(phases)[1:]:
            if seconds < 0.0 or seconds > LIMIT:  # NaN is unknown already
                return False
    for name, fields in PARTS.items():
        part = getattr(report, name)
        if part is not None and _beyond(part, fields):
            return False
    return True


def _bounded(report: StepReport) -> StepReport:
    changes = _beyond(report, FIELDS)
    for name, fields in PARTS.items():
        part = getattr(report, name)
        if part is not None and (beyond := _beyond(part, fields)):
            changes[name] = msgspec.structs.replace(part, **beyond)
    if report.phases is not None and not _is_possible(report.phases):
        changes["phases"] = _possible(report.phases)
    if _is_beyond(report.lr):
        changes["lr"] = tuple(map(infinite_beyond, report.lr))
    if _is_beyond(report.metrics.values()):
        changes["metrics"] = {name: infinite_beyond(value) for name, value in report.metrics.items()}
    return msgspec.structs.replace(report, **changes) if changes else report


def _is_possible(phases: Phases) -> bool:
    """Whether every time is one that can be, and known."""
    parts = astuple(phases)[1:]
    return SHORTEST_SECONDS <= phases.total <= LIMIT and all(0.0 <= seconds <= LIMIT for seconds in parts)


def _possible(phases: Phases) -> Phases:
    """The times, with NaN for those that cannot be."""
    parts = astuple(phases)[1:]
    total = phases.total if SHORTEST_SECONDS <= phases.total <= LIMIT else math.nan
    return Phases(total, *(seconds if 0.0 <= seconds <= LIMIT else math.nan for seconds in parts))


def _beyond(item: Any, fields: Iterable[str]) -> dict[str, Any]:
    """The fields whose numbers are not within the limit, as they should be."""
    found = {}
    for field in fields:
        value = getattr(item, field)
        if value is not None and not -LIMIT <= value <= LIMIT:
            found[field] = infinite_beyond(value)
    return found


def _is_beyond(values: Iterable[float]) -> bool:
    for value in values:  # noqa: SIM110 - three times as fast as a generator, for one value or none
        if not -LIMIT <= value <= LIMIT:
            return True
    return False
