"""The ladder: what the next rollback changes if the same problem comes back, and when to stop.

Design
------
A rollback that continues with different data cures most spikes. If it does not, repeating it unchanged would not help
either (runs replayed unchanged spiked again a hundred steps later). So the second rollback goes further back, skips as
many steps of data as the problem lasted, and lowers the learning rate. Where `quiet_steps` have passed since, snapshots
taken meanwhile are proven and used; the rest is the same. This continues until the budget is spent or no
untried snapshot is left.

What the problem is attributed to changes the rung. A jump of the schedule is undone with the first rollback, and no
data are at fault. After a bad batch the rate is not at fault: only data are skipped. Where a machine is at fault
neither is changed: the rollback saves what was learned, and the advice to take the machine out is what helps.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from caboose_daemon.rollback_state.attribution import Attribution, cordon_of
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.settings import RollbackConfig

DAY_SECONDS = 86_400.0
MAX_SKIP = 1000
"""Upper limit of skipped steps of data."""


@dataclass(frozen=True)
class Rung:
    """The next rollback's place on the ladder."""

    number: int = 1
    older_than: int | None = None
    """The target should be older than this; None for no limit."""
    used: frozenset[int] = frozenset()
    """Targets that did not help."""
    skip: int = 0
    lr_scale: float = 1.0
    why: tuple[str, ...] = ()


def spent(decisions: Iterable[Decision], now: float) -> int:
    """Rollbacks in the last 24 hours."""
    return sum(
        decision.kind == "rollback" and decision.state == "committed" and now - decision.time < DAY_SECONDS
        for decision in decisions
    )


def climb(
    decisions: Iterable[Decision], onset: int, config: RollbackConfig, attribution: Attribution | None = None
) -> Rung:
    """The rung for a problem that began at `onset`, given the rollbacks before it (oldest first)."""
    rung = _next(decisions, onset, config)
    return rung if attribution is None else _adapted(rung, attribution)


def _adapted(rung: Rung, attribution: Attribution) -> Rung:
    """The rung, changed by what the problem is attributed to."""
    match attribution.to:
        case "schedule_jump":
            scale = attribution.lr_scale if rung.number == 1 else min(rung.lr_scale, attribution.lr_scale)
            return replace(rung, skip=0, lr_scale=scale, why=(*rung.why, f"learning rate: {attribution.text}"))
        case "bad_batch":
            fix = "its steps are not fed again" if rung.number == 1 else "data are skipped, the learning rate is kept"
            return replace(rung, lr_scale=1.0, why=(*rung.why, f"data: {attribution.text}; {fix}"))
        case "bad_rank":
            cordon = cordon_of(attribution)
            advice = attribution.text if cordon is None else cordon.text
            return replace(rung, skip=0, lr_scale=1.0, why=(*rung.why, advice))


def _next(decisions: Iterable[Decision], onset: int, config: RollbackConfig) -> Rung:
    """The rung, whatever the problem is attributed to."""
    past = [d for d in decisions if d.kind == "rollback" and d.state == "committed" and d.boundary is not None]
    chain: list[Decision] = []
    first_onset = onset
    for decision in reversed(past):
        assert decision.boundary is not None, "filtered above"
        if not 0 <= onset - decision.boundary <= config.horizon_steps:
            break
        chain.append(decision)
        onset = decision.triage.began if decision.triage is not None else decision.boundary
    if not chain:
        return Rung()
    last = chain[0]
    assert last.boundary is not None, "filtered above"
    lasted = last.boundary - (last.triage.began if last.triage is not None else last.target or last.boundary)
    skip = min(MAX_SKIP, max(0, lasted))
    # What was saved after a quiet time is proven: only the data and the rate are changed then.
    is_soon = first_onset - last.boundary <= config.quiet_steps
    why = (
        f"the rollback at step {last.boundary} (decision {last.number}) did not last"
        f"{': using an older snapshot' if is_soon else ''}"
    )
    used = frozenset(decision.target for decision in chain if decision.target is not None)
    older_than = last.target if is_soon else None
    return Rung(len(chain) + 1, older_than, used if is_soon else frozenset(), skip, config.lr_scale, (why,))
