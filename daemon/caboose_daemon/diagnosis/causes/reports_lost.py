"""Reports are lost on the way: a network that drops, a daemon that was away or is overloaded."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.causes.monitor_overrun import FAST_SECONDS
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice


class ReportsLost(Cause):
    """The way between agent and daemon."""

    id = "reports_lost"
    title = "reports are lost between agent and daemon"
    explains = frozenset({"monitor_blind"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Reports are missing though steps are slow enough to send them all."""
        lost = case.value("monitor_blind", "lost_reports")
        if not lost:
            if lost is not None:
                yield opposes(STRONG, "no report was lost")
            return
        yield supports(FAIR, f"about {lost:.0f} reports of the last minute were lost")
        usual = case.usual_step_seconds
        if usual is not None:
            if usual < FAST_SECONDS:
                yield opposes(FAIR, f"a step takes {1000 * usual:.2g} ms: more reports than the agent can send")
            else:
                yield supports(FAIR, f"a step takes {1000 * usual:.3g} ms, so the agent can send them all")

    def advise(self, case: Case) -> Advice:
        """Look at both ends."""
        return Advice(
            first_fix="see whether the daemon was away or short of CPU, and whether its network drops connections",
            code="caboose daemon  # nearer to the job, or on a machine of its own",
            avoid="do not trust rules that count steps in a row while reports are missing",
            verify="the number of lost reports no longer grows on the job page",
        )
