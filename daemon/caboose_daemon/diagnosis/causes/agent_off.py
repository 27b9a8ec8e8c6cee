"""The agent turned itself off after repeated failures: it got a value that it cannot read, or hit a bug."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice


class AgentOff(Cause):
    """An agent that is off after repeated failures."""

    id = "agent_off"
    title = "agent turned itself off"
    explains = frozenset({"monitor_blind"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        disabled = case.value("monitor_blind", "disabled_agents")
        if disabled:
            yield supports(STRONG, f"{disabled:.0f} of {case.world} agents report that they are off")
        elif disabled is not None:
            yield opposes(STRONG, "all agents are on")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix='search the log of that rank for "caboose:", which has the first failure of each kind',
            code="monitor.step(loss, metrics={'accuracy': float(accuracy)})  # a dictionary of numbers",
            avoid="do not read missing findings as health: this rank is not watched any more",
            verify="after the next start the job page shows every agent as reporting",
        )
