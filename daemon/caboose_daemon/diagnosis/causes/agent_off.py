"""The agent turned itself off after repeated failures: it was handed something it cannot read, or hit a bug."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice


class AgentOff(Cause):
    """Nobody watches."""

    id = "agent_off"
    title = "the agent turned itself off"
    explains = frozenset({"monitor_blind"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Agents say so themselves."""
        disabled = case.value("monitor_blind", "disabled_agents")
        if disabled:
            yield supports(STRONG, f"{disabled:.0f} of {case.world} agents say that they are off")
        elif disabled is not None:
            yield opposes(STRONG, "every agent is on")

    def advise(self, case: Case) -> Advice:
        """Its log says why."""
        return Advice(
            first_fix='look for "caboose:" in the log of that rank: the first failure of each kind is there',
            code="monitor.step(loss, metrics={'accuracy': float(accuracy)})  # metrics must be numbers",
            avoid="do not take its silence for health: this rank is not watched any more",
            verify="after the next start the job page shows every agent as reporting",
        )
