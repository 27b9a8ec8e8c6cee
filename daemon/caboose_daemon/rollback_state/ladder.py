"""The ladder: what the next rollback changes if the same problem comes back, and when to stop.

Design
------
A rollback that continues with different data cures most spikes. If it does not, repeating it unchanged would not help
either (runs replayed unchanged spiked again a hundred steps later). So the second rollback goes further back, skips as
many steps of data as the problem lasted, and lowers the learning rate. Where `quiet_steps` have passed since, snapshots
taken meanwhile are proven and used; the rest is the same. This continues until the budget is spent or no
untried snapshot is left.
"""

from collections.abc import Iterable
from dataclasses import dataclass

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


def climb(decisions: Iterable[Decision], onset: int, config: RollbackConfig) -> Rung:
    """The rung for a problem that began at `onset`, given the rollbacks before it (oldest first)."""
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
        f"the rollback at step {last.boundary} (decision {last.number}) did not last: "
        f"{'using an older snapshot, ' if is_soon else ''}skipping more data, lowering the learning rate"
    )
    used = frozenset(decision.target for decision in chain if decision.target is not None)
    older_than = last.target if is_soon else None
    return Rung(len(chain) + 1, older_than, used if is_soon else frozenset(), skip, config.lr_scale, (why,))
