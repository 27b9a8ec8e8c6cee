"""A rank's process is gone without a word: killed for want of memory, preempted, or its machine is down."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

MUCH_MEMORY = 1.5
"""Times its peers' memory."""


class RankKilled(Cause):
    """A process that ended from outside."""

    id = "rank_killed"
    title = "a rank's process was killed"
    explains = frozenset({"rank_silent", "job_stalled", "throughput_regression"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Silence without a good-bye, and what the peers saw."""
        member = case.episode("rank_silent")
        if member is None:
            if case.is_quiet("rank_silent"):
                yield opposes(STRONG, "every process is heard")
            return
        if not member.is_open and member.last.state == "resolved":
            yield opposes(STRONG, "it was heard again: the process lives")
        if case.value("rank_silent", "failed_ranks"):
            yield opposes(STRONG, "a rank left with an error of its own")
        silent, lost = case.value("rank_silent", "silent_ranks"), case.value("rank_silent", "ranks_that_lost_a_peer")
        if silent:
            yield supports(FAIR, f"{case.who('rank_silent')} fell silent without a good-bye, its heartbeats too")
        if lost:
            yield supports(STRONG, f"{lost:.0f} of its peers lost the connection to it: the process is gone")
        elif silent and silent >= case.world > 1:
            yield supports(SLIGHT, "all ranks fell silent at once, as when the launcher or the machine ends them")
        yield from self._weigh_memory(case)

    def _weigh_memory(self, case: Case) -> Iterator[Evidence]:
        finding = case.finding("rank_silent")
        if case.sampled is None or finding is None or len(finding.ranks) != 1:
            return
        used = {rank: report.host_bytes for rank, report in case.sampled.reports.items() if report.host_bytes}
        own = used.pop(finding.ranks[0], None)
        if own is None or not used:
            return
        usual = sorted(used.values())[len(used) // 2]
        if own > MUCH_MEMORY * usual:
            yield supports(FAIR, f"it used {own / 2**30:.3g} GiB of host memory, its peers {usual / 2**30:.3g} GiB")

    def advise(self, case: Case) -> Advice:
        """Ask the machine why."""
        return Advice(
            first_fix=f"ask the machine of {case.who('rank_silent')} why: 'Out of memory' in dmesg, or the scheduler",
            code="torchrun --max-restarts 3 ...  # goes on from the last checkpoint by itself",
            avoid="do not look for it in the learning rate or the data: nothing was wrong with the numbers",
            verify="the machine's log names the reason; the run passes the step it ended at",
        )
