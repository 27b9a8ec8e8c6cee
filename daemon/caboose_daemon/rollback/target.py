"""Chooses the snapshot to go back to, and the boundary at which all ranks can act.

Design
------
A snapshot is of use only if every rank has it and it is out of quarantine on every rank, so the sets that the ranks
told of are intersected. The boundary must lie so far ahead that every rank knows of the command before it gets there:
reports come twice a second, agents look at their socket twice a second, and a rank that the command did not reach
learns of it from the others' register. So the notice is counted in seconds and turned into steps by the run's own pace.
Ranks act at a step that is one: in a run that counts in strides, the boundary lies whole strides ahead.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from statistics import median

from caboose_daemon.steps.columns import StepSummary
from caboose_wire import Held, Holdings

MIN_NOTICE = 4
"""Steps between the newest one seen and the boundary, at least."""
MAX_NOTICE = 20_000
"""The ranks refuse a boundary that is further ahead: until then nothing else could be done."""
ENOUGH_STEPS = 1000
ENOUGH_SECONDS = 30.0
"""However often it was too few: no more than both of these."""
NOTICE_SECONDS = 1.5
"""Half a second each until a report is sent, until an agent looks at its socket, and until others have it from it."""
MAX_LAG_SECONDS = 10.0
"""A lag is measured by the ranks' own clocks; one that is wrong must not put the boundary into the next day."""
PACE_STEPS = 50
SHOWN = 6


def common(holdings: Mapping[int, Holdings], world: int) -> dict[int, Held]:
    """The snapshots that are ready on every rank, by step."""
    ready = [{held.step for held in h.snapshots if held.is_ready} for h in holdings.values()]
    everywhere = set.intersection(*ready) if ready else set()
    return {held.step: held for held in on_all(holdings, world) if held.step in everywhere}


def on_all(holdings: Mapping[int, Holdings], world: int) -> list[Held]:
    """The snapshots that every rank has, ready or not, oldest first, as the lowest rank tells of them."""
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
    """The newest snapshot of all ranks at or before `latest`, and a line on the choice; None where there is none.

    Where it should be `older_than` another and none is, it is the oldest that was not `used`.
    """
    missing = sorted(set(range(world)) - holdings.keys())
    if missing:
        return None, f"{_ranks(missing)} of {world} told of no snapshots"
    ready = common(holdings, world)
    fitting = [held for step, held in ready.items() if step <= latest]
    good = [held for held in fitting if not taint_of(held.step)]
    if good and older_than is not None:
        older = [held for held in good if held.step < older_than]
        rest = [held for held in good if held.step not in used]
        if older:
            return older[-1], f"snapshot of step {older[-1].step}: the newest on all {world} ranks before {older_than}"
        if rest:
            return rest[0], f"snapshot of step {rest[0].step}: the oldest on all {world} ranks that was not tried"
        return None, f"all snapshots at or before step {latest} were tried; {held_on(holdings)}"
    if good:
        chosen = good[-1]
        return chosen, f"snapshot of step {chosen.step}: the newest that is ready on all {world} ranks by step {latest}"
    if fitting:
        last = fitting[-1].step
        return None, f"the snapshots at or before step {latest} are tainted; that of step {last}: {taint_of(last)}"
    return None, f"no snapshot at or before step {latest} is ready on all {world} ranks; {held_on(holdings)}"


def held_on(holdings: Mapping[int, Holdings]) -> str:
    """What the ranks hold, in a few words: all alike, or the first few that differ."""
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
    """Seconds from one step to the next, lately; 1 where that is not known."""
    last = list(recent)[-PACE_STEPS:]
    gaps = [(b.time - a.time) / (b.step - a.step) for a, b in pairwise(last) if b.step > a.step]
    known = [gap for gap in gaps if gap > 0] or [s.step_seconds for s in last if s.step_seconds]
    return median(known) if known else 1.0


def stride(recent: Iterable[StepSummary]) -> int:
    """What the steps that were seen lately are apart, or have in common where that varies; 1 where it is not known."""
    last = list(recent)[-PACE_STEPS:]
    return math.gcd(*(b.step - a.step for a, b in pairwise(last) if b.step > a.step)) or 1


def ahead(newest: int, num_steps: int, stride: int) -> int:
    """The first step that a run with such strides comes to, at least so many after the newest one seen."""
    strides = math.ceil(num_steps / stride)
    if strides * stride > MAX_NOTICE:
        strides = max(1, MAX_NOTICE // stride)
    return newest + strides * stride


def notice(step_seconds: float, lag_seconds: float, *, num_tried: int = 0) -> int:
    """How many steps ahead of the newest one seen the boundary is put; twice as many for each time it was too few."""
    lag = min(max(0.0, lag_seconds), MAX_LAG_SECONDS)
    steps = math.ceil((NOTICE_SECONDS + 2.0 * lag) / max(step_seconds, 1e-6)) + 2
    enough = max(ENOUGH_STEPS, math.ceil(ENOUGH_SECONDS / max(step_seconds, 1e-6)))
    return min(MAX_NOTICE, enough, max(MIN_NOTICE, steps) << num_tried)
