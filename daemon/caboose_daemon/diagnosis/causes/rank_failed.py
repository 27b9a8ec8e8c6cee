"""A rank exited with its own error; its peers only lost the connection to it."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice


class RankFailed(Cause):
    """An exception in the training script of one rank."""

    id = "rank_failed"
    title = "error on one rank"
    explains = frozenset({"rank_silent", "job_stalled"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        finding = case.finding("rank_silent")
        failed = case.value("rank_silent", "failed_ranks")
        if finding is not None and failed:
            yield supports(DECISIVE, finding.summary)
        elif finding is not None and failed is not None:
            yield opposes(STRONG, "no rank reported an error, except about a lost peer")
        elif case.is_quiet("rank_silent"):
            yield opposes(STRONG, "no rank has failed")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix=f"read the traceback of {case.who('rank_silent')}; the other ranks' errors follow from it",
            avoid="do not raise the timeout of the collectives: the others wait for a rank that is gone",
            verify="the run gets past the step at which it ended",
        )
