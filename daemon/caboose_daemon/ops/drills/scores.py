"""Scores outcomes: per drill, and against the goals."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caboose_daemon.ops.drills.judge import DrillOutcome
from caboose_daemon.ops.drills.results import Result

FOUND = 0.8
"""Share of seeds in which the drill's own rule must find the fault: 4 of 5."""
CAUSE_FIRST = 0.7
CAUSE_NEAR = 0.9
ORIGIN = 0.9
TWIN_SEEDS = 20
"""Seeds that each healthy run needs."""


@dataclass(frozen=True)
class Goal:
    """One goal, and whether it is met; None if it could not be measured."""

    text: str
    is_met: bool | None


def is_found(result: Result) -> bool:
    """Whether the drill was found in enough of its seeds."""
    return sum(outcome.found for outcome in result.outcomes) >= FOUND * len(result.outcomes)


def is_one_incident(result: Result) -> bool:
    """Whether the drill was found, and as one incident, in enough of its seeds."""
    return sum(outcome.found and outcome.is_one for outcome in result.outcomes) >= FOUND * len(result.outcomes)


def is_passed(result: Result) -> bool:
    """Whether a drill was found as one incident, or a healthy run left without a critical finding; all seeds judged."""
    if any(outcome.error for outcome in result.outcomes):
        return False
    if result.drill.is_healthy:
        return not any(outcome.num_critical for outcome in result.outcomes)
    return is_one_incident(result)


def median_delay(result: Result) -> float | None:
    """Steps from fault to finding."""
    delays = [outcome.delay for outcome in result.outcomes if outcome.delay is not None]
    return statistics.median(delays) if delays else None


def share_of_origins(outcomes: Iterable[DrillOutcome]) -> float | None:
    """The share of found seeds whose origin was named."""
    named = [outcome.origin for outcome in outcomes if outcome.origin is not None]
    return sum(named) / len(named) if named else None


def usual_cause_rank(result: Result) -> float | None:
    """The true cause's place in the median seed; infinite if missing."""
    ranks = _cause_ranks(result)
    return statistics.median_high(ranks) if ranks else None


def _cause_ranks(result: Result) -> list[float]:
    """Of every seed that was judged while there was a diagnosis."""
    return [outcome.cause_rank or float("inf") for outcome in result.outcomes if outcome.cause_rank is not None]


def goals(results: Sequence[Result]) -> list[Goal]:
    """The goals, over whatever was measured."""
    drills = [result for result in results if not result.drill.is_healthy]
    twins = [result for result in results if result.drill.is_healthy]
    found: list[Goal] = []
    if drills:
        missed = [result.name for result in drills if not is_found(result)]
        text = f"found by its own rule in 4 of 5 seeds: {len(drills) - len(missed)} of {len(drills)} drills"
        found.append(Goal(text + (f"; not {', '.join(missed)}" if missed else ""), not missed))
    if twins:
        critical = sum(outcome.num_critical > 0 or bool(outcome.error) for r in twins for outcome in r.outcomes)
        fewest = min(len(result.outcomes) for result in twins)
        text = f"no critical finding on {len(twins)} healthy runs x {fewest} seeds or more: {critical} had one"
        is_enough = fewest >= TWIN_SEEDS
        found.append(Goal(text if is_enough else f"{text} (too few seeds)", critical == 0 if is_enough else None))
    diagnosed = [(result.name, usual_cause_rank(result)) for result in drills]
    ranks = [rank for _, rank in diagnosed if rank is not None]
    if ranks:
        first, near = (sum(rank <= most for rank in ranks) for most in (1, 2))
        text = f"true cause first in {first} of {len(ranks)} drills, first or second in {near}"
        found.append(Goal(text, first >= CAUSE_FIRST * len(ranks) and near >= CAUSE_NEAR * len(ranks)))
    elif drills:
        found.append(Goal("true cause: no diagnosis was given", None))
    counted = [(r.name, o.num_incidents) for r in drills for o in r.outcomes if o.num_incidents is not None]
    if counted:
        several = sorted({name for name, number in counted if number > 1})
        once = sum(number <= 1 for _, number in counted)
        text = f"one fault, one incident: in {once} of {len(counted)} seeds"
        is_met = all(is_one_incident(result) or not is_found(result) for result in drills)
        found.append(Goal(text + (f"; more in {', '.join(several)}" if several else ""), is_met))
    with_origin = [result for result in drills if result.drill.has_origin]
    if with_origin:
        outcomes = [outcome for result in with_origin for outcome in result.outcomes]
        named = sum(outcome.origin is True for outcome in outcomes)
        text = f"origin right in {named} of {len(outcomes)} seeds of {len(with_origin)} drills that have one"
        found.append(Goal(text, named >= ORIGIN * len(outcomes)))
    return found
