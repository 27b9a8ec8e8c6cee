"""Whether a change helped: every quantity compared, other changes at the time, and one verdict.

Design
------
The verdict uses quantities that are better or worse in themselves: the loss's level and slope, steps without a finite
loss, incidents, and step time. The gradient norm is shown but does not count: neither a small nor a large one is good
in itself. `helped` needs one of them better and none worse, beyond chance, and not only step time: shorter steps alone
are `faster`, which says nothing about learning. `same` needs a loss that moved by less than `MARGINS`. Anything else
that changed at the same moment (an attempt, a learning rate, the ranks, another declared event, a loss that was already
recovering) is listed as a caveat: a before-and-after test cannot separate them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from caboose_daemon.format import to_float
from caboose_daemon.incidents.incident import LOSS_RULES
from caboose_daemon.offline.verifying.quantity import (
    QuantityChange,
    compare_levels,
    compare_rates,
    compare_slopes,
    compare_states,
    finite,
    pair,
)
from caboose_daemon.offline.verifying.stretch import Floats

Json = dict[str, Any]
Meaning = Literal["better", "worse", "same", "unknown", "noted"]
Overall = Literal["helped", "hurt", "mixed", "faster", "same", "unknown"]
MARGINS = {"loss": 0.02, "grad_norm": 0.1, "step_seconds": 0.05}
"""Relative changes smaller than these count as no change."""
SETTLING_STEPS = 20
"""Steps right after a change that are ignored: an optimizer's averages need that long to adapt."""
QUIET_EVENTS = ("validation", "checkpoint", "checkpoint_saved", "fix", "note")
RATE_CHANGE = 0.02
STEP_TIME = "step time"


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity and the meaning of its change."""

    name: str
    unit: str
    comparison: QuantityChange
    meaning: Meaning


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on a change."""

    overall: Overall
    quantities: tuple[Quantity, ...]
    caveats: tuple[str, ...]
    num_before: int
    """Steps compared."""
    num_after: int
    more_steps: int
    """About how many more steps are needed; 0 if unknown."""

    def as_object(self) -> Json:
        """For programs."""
        return {
            "verdict": self.overall,
            "quantities": [
                {
                    "quantity": q.name,
                    "unit": q.unit,
                    "meaning": q.meaning,
                    "change": q.comparison.change,
                    "before": q.comparison.before,
                    "after": q.comparison.after,
                    "relative_change": None
                    if q.comparison.lowest is None
                    else [q.comparison.lowest, q.comparison.highest],
                    "why": q.comparison.why,
                }
                for q in self.quantities
            ],
            "caveats": list(self.caveats),
            "num_before": self.num_before,
            "num_after": self.num_after,
            "more_steps": self.more_steps,
        }


def judge(
    around: Json, change: Json, events: Sequence[Json], incidents: Sequence[Json], *, settling: int
) -> Verification:
    """The verdict on a declared change; all arguments in the API's shapes."""
    before, after = around["before"], around["after"][settling:]
    after = after[: max(len(before), 1)]
    losses = pair(finite(*_column(before, "loss")), finite(*_column(after, "loss")))
    seconds = pair(_logarithms(before, "step_seconds"), _logarithms(after, "step_seconds"))
    norms = pair(_logarithms(before, "grad_norm"), _logarithms(after, "grad_norm"))
    moment = (change["attempt"], change["step"])
    late = sum((i["attempt"], i["opened_step"]) > moment for i in incidents)
    quantities = (
        _judged("loss level", "", compare_levels(losses, MARGINS["loss"])),
        _judged("loss slope", "of the level, per 1,000 steps", compare_slopes(losses)),
        _judged(
            "not finite",
            "per 1,000 steps",
            compare_states(_are_bad(before), _are_bad(after)),
        ),
        _judged(
            "incidents",
            "per 1,000 steps",
            compare_rates(len(incidents) - late, around["num_before"], late, around["num_after"]),
        ),
        _judged(STEP_TIME, "s", compare_levels(seconds, MARGINS["step_seconds"], is_log=True)),
        _judged("gradient norm", "", compare_levels(norms, MARGINS["grad_norm"], is_log=True), does_count=False),
    )
    return Verification(
        overall=_overall(quantities),
        quantities=quantities,
        caveats=tuple(_caveats(before, after, moment, change, events, incidents)),
        num_before=len(before),
        num_after=len(after),
        more_steps=quantities[0].comparison.more_steps + (settling if not after else 0),
    )


def _judged(name: str, unit: str, comparison: QuantityChange, *, does_count: bool = True) -> Quantity:
    meanings: dict[str, Meaning] = {"lower": "better", "higher": "worse", "same": "same", "unknown": "unknown"}
    meaning = meanings[comparison.change]
    if not does_count and meaning in ("better", "worse"):
        meaning = "noted"
    return Quantity(name, unit, comparison, meaning)


def _overall(quantities: Sequence[Quantity]) -> Overall:
    meanings = {q.meaning for q in quantities}
    if {"better", "worse"} <= meanings:
        return "mixed"
    if "better" in meanings:
        return "helped" if any(q.meaning == "better" and q.name != STEP_TIME for q in quantities) else "faster"
    if "worse" in meanings:
        return "hurt"
    return "same" if quantities[0].meaning == "same" else "unknown"


def _column(rows: Sequence[Json], name: str) -> tuple[Floats, Floats]:
    return np.array([row["step"] for row in rows], dtype=float), np.array([to_float(row[name]) for row in rows])


def _logarithms(rows: Sequence[Json], name: str) -> tuple[Floats, Floats]:
    steps, values = finite(*_column(rows, name))
    return steps[values > 0], np.log(values[values > 0])


def _are_bad(rows: Sequence[Json]) -> list[bool]:
    return [row["loss"] is not None and not math.isfinite(to_float(row["loss"])) for row in rows]


def _caveats(
    before: Sequence[Json],
    after: Sequence[Json],
    moment: tuple[int, int],
    change: Json,
    events: Sequence[Json],
    incidents: Sequence[Json],
) -> list[str]:
    """Other possible explanations of a difference."""
    found: list[str] = []
    if not before or not after:
        return found
    for attempt in sorted({row["attempt"] for row in (*before, *after)} - {before[0]["attempt"]}):
        found.append(f"attempt {attempt} began in this range: the difference includes the effect of the restart")
    first, last = (before[0]["attempt"], before[0]["step"]), (after[-1]["attempt"], after[-1]["step"])
    for event in events:
        if event["kind"] not in QUIET_EVENTS and first <= (event["attempt"], event["step"]) <= last:
            found.append(f"{event['kind']} was declared at step {event['step']}")
    others = {
        (event["attempt"], event["step"])
        for event in events
        if event["kind"] in ("fix", "note") and first <= (event["attempt"], event["step"]) <= last
    } - {moment}
    if others:
        found.append(f"another change was declared at step {', '.join(str(step) for _, step in sorted(others))}")
    old, new = _middle(before[-50:], "lr"), _middle(after, "lr")
    if abs(new - old) > RATE_CHANGE * abs(old) and "lr" not in change["fields"]:
        found.append(f"the learning rate changed from {old:.3g} to {new:.3g}")
    ranks = before[-1]["num_ranks"], after[-1]["num_ranks"]
    if ranks[0] != ranks[1]:
        found.append(f"{ranks[0]} ranks reported before, {ranks[1]} after: batch size and speed changed")
    for incident in incidents:
        began = (incident["attempt"], incident["onset_step"])
        ended = incident["closed_step"]
        was_open = began <= moment and (ended is None or (incident["attempt"], ended) >= moment)
        if was_open and ({m["rule"] for m in incident["members"]} & set(LOSS_RULES)):
            found.append(f"{incident['id']} ({incident['rule']}) was open then: the loss may have recovered anyway")
    return found


def _middle(rows: Sequence[Json], name: str) -> float:
    _, values = finite(*_column(rows, name))
    return float(np.median(values)) if len(values) else math.nan
