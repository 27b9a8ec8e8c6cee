"""Chooses the snapshot to roll back to, and the boundary at which all ranks can act.

Design
------
A snapshot is usable only if every rank has it and has found it intact, so the ranks' lists are intersected. No time
makes it good: the newest from before the problem began, by a margin, is used. The boundary must be far enough ahead
that every rank has the command before it gets there: while an incident is open agents send their reports and read
their socket 20 times a second, and a rank the command did not reach gets it from the other ranks' register. So the
notice is counted in seconds and converted to steps by the run's pace. Ranks that were not ready in time get twice the
notice. Ranks act only at steps that occur: in a run that counts in strides, the boundary is whole strides ahead.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from statistics import median

from caboose_daemon.steps.columns import StepSummary
from caboose_wire import Held, Holdings
from caboose_wire.expectation import notice_steps, steps_lost
from caboose_wire.fields import MAX_COUNT

MAX_NOTICE = 20_000
"""Maximum steps; the ranks refuse a boundary further ahead, since it would block other commands."""
ENOUGH_STEPS = 1000
ENOUGH_SECONDS = 30.0
"""Upper limit for retries: the larger of these two."""
MAX_LAG_SECONDS = 10.0
"""The lag is measured with the ranks' clocks; a wrong clock must not move the boundary far ahead."""
PACE_STEPS = 50
SHOWN = 6


def common(holdings: Mapping[int, Holdings], world: int) -> dict[int, Held]:
    """The snapshots that are ready on every rank, by step."""
    ready = [{held.step for held in h.snapshots if held.is_ready} for h in holdings.values()]
    everywhere = set.intersection(*ready) if ready else set()
    return {held.step: held for held in on_all(holdings, world) if held.step in everywhere}


def on_all(holdings: Mapping[int, Holdings], world: int) -> list[Held]:
    """The snapshots every rank has, ready or not, oldest first, as reported by the lowest rank."""
    if not holdings or len(holdings) < world:
        return []
    everywhere = set.intersection(*({held.step for held in h.snapshots} for h in holdings.values()))
    some = sorted(holdings[min(holdings)].snapshots, key=lambda held: held.step)
    return [held for held in some if held.step in everywhere]


def choose(
    holdings: Mapping[int, Holdings],
    world: int,
    *,
    latest: int,
    older_than: int | None = None,
    used: Collection[int] = (),
    taint_of: Callable[[int], str] = lambda step: "",
) -> tuple[Held | None, str]:
    """The newest snapshot of all ranks at or before `latest`, or None, and the reason.

    If it should be `older_than` a step and none is, the oldest one not in `used`.
    """
    missing = sorted(set(range(world)) - holdings.keys())
    if missing:
        return None, f"{_ranks(missing)} of {world} reported no snapshots"
    ready = common(holdings, world)
    fitting = [held for step, held in ready.items() if step <= latest]
    good = [held for held in fitting if not taint_of(held.step)]
    if good and older_than is not None:
        older = [held for held in good if held.step < older_than]
        rest = [held for held in good if held.step not in used]
        if older:
            return older[
                -1
            ], f"snapshot of step {older[-1].step}: the newest ready on all {world} ranks before step {older_than}"
        if rest:
            return rest[0], f"snapshot of step {rest[0].step}: the oldest untried one on all {world} ranks"
        return None, f"all snapshots at or before step {latest} were tried; {held_on(holdings)}"
    if good:
        chosen = good[-1]
        return (
            chosen,
            f"snapshot of step {chosen.step}: the newest ready on all {world} ranks by step {latest}",
        )
    if fitting:
        last = fitting[-1].step
        return None, f"all snapshots at or before step {latest} are tainted; step {last}: {taint_of(last)}"
    return None, f"no snapshot at or before step {latest} is ready on all {world} ranks; {held_on(holdings)}"


def held_on(holdings: Mapping[int, Holdings]) -> str:
    """A short list of the ranks' snapshots, grouped by ranks that hold the same."""
    texts: dict[str, list[int]] = {}
    for rank, of_rank in sorted(holdings.items()):
        steps = [f"{h.step}{'' if h.is_ready else ' (not ready)'}" for h in of_rank.snapshots[-SHOWN:]]
        texts.setdefault(", ".join(steps) or "none", []).append(rank)
    if len(texts) == 1:
        return f"held: {next(iter(texts))}"
    shown = [f"{_ranks(ranks)}: {text}" for text, ranks in list(texts.items())[:3]]
    return f"held on {'; '.join(shown)}{'; ...' if len(texts) > 3 else ''}"


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:SHOWN])) + (", ..." if len(ranks) > SHOWN else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def pace(recent: Iterable[StepSummary]) -> float:
    """Recent seconds per step; 1 if unknown."""
    last = list(recent)[-PACE_STEPS:]
    gaps = [(b.time - a.time) / (b.step - a.step) for a, b in pairwise(last) if b.step > a.step]
    known = [gap for gap in gaps if gap > 0] or [s.step_seconds for s in last if s.step_seconds]
    return median(known) if known else 1.0


def stride(recent: Iterable[StepSummary]) -> int:
    """Greatest common divisor of the recent distances between steps; 1 if unknown."""
    last = list(recent)[-PACE_STEPS:]
    return math.gcd(*(b.step - a.step for a, b in pairwise(last) if b.step > a.step)) or 1


def ahead(newest: int, num_steps: int, stride: int) -> int:
    """The first step of the run at least `num_steps` after the newest one seen, if a command can name it."""
    strides = math.ceil(num_steps / stride)
    if strides * stride > MAX_NOTICE:
        strides = max(1, MAX_NOTICE // stride)
    return min(MAX_COUNT, newest + strides * stride)


def expected_steps_lost(
    holdings: Mapping[int, Holdings], step_seconds: float, lag_seconds: float, margin: int
) -> int | None:
    """Steps that a rollback after a sudden fault loses, besides those until it is decided; None without snapshots."""
    every = max((of_rank.snapshot_every for of_rank in holdings.values()), default=0)
    if not every:
        return None
    return steps_lost(every, step_seconds, min(lag_seconds, MAX_LAG_SECONDS), margin)


def notice(step_seconds: float, lag_seconds: float, *, num_tried: int = 0) -> int:
    """Steps between the newest one seen and the boundary; doubled for each earlier try."""
    steps = notice_steps(step_seconds, min(lag_seconds, MAX_LAG_SECONDS))
    enough = max(ENOUGH_STEPS, math.ceil(ENOUGH_SECONDS / max(step_seconds, 1e-6)))
    return min(MAX_NOTICE, enough, steps << num_tried)
