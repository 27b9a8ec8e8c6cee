"""A rank's process is gone without an error: killed for lack of memory, preempted, or its machine is down."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.format import plural
from caboose_daemon.incidents.diagnosis_record import Advice

MUCH_MEMORY = 1.5
"""Ratio to the peers' memory."""


class RankKilled(Cause):
    """A process that was ended from outside."""

    id = "rank_killed"
    title = "killed rank process"
    explains = frozenset({"rank_silent", "job_stalled", "throughput_regression"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        member = case.episode("rank_silent")
        if member is None:
            if case.is_quiet("rank_silent"):
                yield opposes(STRONG, "every rank sends heartbeats")
            return
        if not member.is_open and member.last.state == "resolved":
            yield opposes(STRONG, "its heartbeats came back: the process is alive")
        if case.value("rank_silent", "failed_ranks"):
            yield opposes(STRONG, "a rank exited with an error")
        silent, lost = case.value("rank_silent", "silent_ranks"), case.value("rank_silent", "ranks_that_lost_a_peer")
        if silent:
            yield supports(FAIR, f"heartbeats of {case.who('rank_silent')} stopped without an exit message")
        if lost:
            yield supports(STRONG, f"{plural(round(lost), 'peer')} lost the connection to it: the process is gone")
        elif terminated := case.value("rank_silent", "terminated_ranks"):
            yield supports(
                STRONG, f"the launcher terminated {terminated:.0f} other ranks, as it does once one has ended"
            )
        elif silent and silent >= case.world > 1:
            yield supports(SLIGHT, f"all {case.world} ranks went silent, as when the launcher or the machine stops")
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
            yield supports(FAIR, f"used {own / 2**30:.3g} GiB of host memory, its peers {usual / 2**30:.3g} GiB")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix=f"search dmesg on the machine of {case.who('rank_silent')} and the scheduler's log for a reason",
            code="torchrun --max-restarts 3 ...  # restarts; the script must load the last checkpoint",
            avoid="do not change learning rate or data: the numbers were fine",
            verify="the machine's log names the reason; the run gets past the step at which it ended",
        )
