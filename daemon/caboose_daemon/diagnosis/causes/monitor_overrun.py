"""Reports are lost because steps come faster than they can be sent, or the way to the daemon is too slow."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

FAST_SECONDS = 0.002
"""An agent sends about twice a second and keeps a thousand reports, as many as steps of half this length make."""


class MonitorOverrun(Cause):
    """More reports than the way to the daemon takes."""

    id = "monitor_overrun"
    title = "more reports than can be sent"
    explains = frozenset({"monitor_blind"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """How much was lost, and how fast the steps are."""
        lost = case.value("monitor_blind", "lost_reports")
        if not lost:
            if lost is not None:
                yield opposes(STRONG, "no report was lost")
            return
        yield supports(FAIR, f"about {lost:.0f} reports of the last minute were lost")
        usual = case.usual_step_seconds
        if usual is not None:
            if usual < FAST_SECONDS:
                yield supports(
                    STRONG, f"a step takes {1000 * usual:.2g} ms: {1 / usual:,.0f} reports a second and rank"
                )
            else:
                yield opposes(FAIR, f"a step takes {1000 * usual:.3g} ms: the agent can keep up with that")

    def advise(self, case: Case) -> Advice:
        """Report less often."""
        return Advice(
            first_fix="call monitor.step once in ten optimizer steps, or make the batch larger",
            code="if step % 10 == 0: monitor.step(loss, step=step)",
            avoid="do not trust rules that count steps in a row while reports are missing",
            verify="the number of lost reports no longer grows on the job page",
        )
