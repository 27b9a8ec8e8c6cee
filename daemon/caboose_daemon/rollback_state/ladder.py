"""The ladder: what is done differently when the same trouble comes again, and when to stop.

Design
------
Going back and on with other data is enough for most spikes. Where it is not, the same again would not be either (runs
that were replayed unchanged spiked a hundred steps later): so the second time goes further back, drops as many steps of
data as the trouble lasted, and lowers the learning rate; and so on, until the budget is spent or there is nothing to
go back to that was not tried. Then a machine has nothing left to try.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.settings import RollbackConfig

DAY_SECONDS = 86_400.0
MAX_SKIP = 1000
"""Steps of data that are dropped at most, however long the trouble lasted."""


@dataclass(frozen=True)
class Rung:
    """Where on the ladder the next rollback would be."""

    number: int = 1
    older_than: int | None = None
    """The target should be older than this; None where any will do."""
    used: frozenset[int] = frozenset()
    """Targets that did not help."""
    skip: int = 0
    lr_scale: float = 1.0
    why: tuple[str, ...] = ()


def spent(decisions: Iterable[Decision], now: float) -> int:
    """Rollbacks of the last day."""
    return sum(
        decision.kind == "rollback" and decision.state == "committed" and now - decision.time < DAY_SECONDS
        for decision in decisions
    )


def climb(decisions: Iterable[Decision], onset: int, config: RollbackConfig) -> Rung:
    """The rung for trouble that began at `onset`, by the rollbacks before it (oldest first)."""
    past = [d for d in decisions if d.kind == "rollback" and d.state == "committed" and d.boundary is not None]
    chain: list[Decision] = []
    for decision in reversed(past):
        assert decision.boundary is not None, "just looked at"
        if not 0 <= onset - decision.boundary <= config.horizon_steps:
            break
        chain.append(decision)
        onset = decision.triage.began if decision.triage is not None else decision.boundary
    if not chain:
        return Rung()
    last = chain[0]
    assert last.boundary is not None, "just looked at"
    lasted = last.boundary - (last.triage.began if last.triage is not None else last.target or last.boundary)
    skip = min(MAX_SKIP, max(0, lasted))
    why = f"the rollback at step {last.boundary} (decision {last.number}) did not last: older, past more data, slower"
    used = frozenset(decision.target for decision in chain if decision.target is not None)
    return Rung(len(chain) + 1, last.target, used, skip, config.lr_scale, (why,))
