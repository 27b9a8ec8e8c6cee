"""Reports are lost because steps are faster than reports can be sent, or the connection to the daemon is too slow."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.format import seconds
from caboose_daemon.incidents.diagnosis_record import Advice

FAST_SECONDS = 0.002
"""An agent sends about twice a second and keeps a thousand reports, those of half a second at half this step time."""


class MonitorOverrun(Cause):
    """More reports than the connection to the daemon carries."""

    id = "monitor_overrun"
    title = "more reports than the agent can send"
    explains = frozenset({"monitor_blind"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        lost = case.value("monitor_blind", "lost_reports")
        if not lost:
            if lost is not None:
                yield opposes(STRONG, "no report was lost")
            return
        yield supports(FAIR, f"about {lost:,.0f} reports lost in the last minute")
        usual = case.usual_step_seconds
        if usual is not None:
            if usual < FAST_SECONDS:
                yield supports(STRONG, f"step time {seconds(usual)}: {1 / usual:,.0f} reports per second and rank")
            else:
                yield opposes(FAIR, f"step time {seconds(usual)}: the agent can send that many reports")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="call monitor.step once in ten optimizer steps, or use a larger batch",
            code="if step % 10 == 0: monitor.step(loss, step=step)",
            avoid="do not rely on rules that count steps in a row while reports are missing",
            verify="the number of lost reports on the job page no longer grows",
        )
