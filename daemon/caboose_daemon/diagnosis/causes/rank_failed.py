"""A rank left with an error of its own; its peers only lost it."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import DECISIVE, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice


class RankFailed(Cause):
    """An exception in the training script of one rank."""

    id = "rank_failed"
    title = "a rank raised an error"
    explains = frozenset({"rank_silent", "job_stalled"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """It said so."""
        finding = case.finding("rank_silent")
        failed = case.value("rank_silent", "failed_ranks")
        if finding is not None and failed:
            yield supports(DECISIVE, finding.summary)
        elif finding is not None and failed is not None:
            yield opposes(STRONG, "no rank named an error of its own")
        elif case.is_quiet("rank_silent"):
            yield opposes(STRONG, "no rank has left")

    def advise(self, case: Case) -> Advice:
        """Read the traceback of the right rank."""
        return Advice(
            first_fix=f"read the traceback of {case.who('rank_silent')}: the errors of the others follow from it",
            avoid="do not raise the timeout of the collectives: the others wait for a rank that is gone",
            verify="the run passes the step it ended at",
        )
