"""Reports are lost on the way: a network that drops them, a daemon that was down or is overloaded."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.diagnosis.causes.monitor_overrun import FAST_SECONDS
from caboose_daemon.format import seconds
from caboose_daemon.incidents.diagnosis_record import Advice


class ReportsLost(Cause):
    """A faulty connection between agent and daemon."""

    id = "reports_lost"
    title = "reports lost between agent and daemon"
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
                yield opposes(FAIR, f"step time {seconds(usual)}: more reports than the agent can send")
            else:
                yield supports(FAIR, f"step time {seconds(usual)}: the agent can send that many reports")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="check whether the daemon was down or short of CPU, and whether the network drops connections",
            code="caboose daemon  # nearer to the job, or on a separate machine",
            avoid="do not rely on rules that count steps in a row while reports are missing",
            verify="the number of lost reports on the job page no longer grows",
        )
