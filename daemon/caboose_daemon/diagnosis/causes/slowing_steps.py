"""Each step does more work, or holds more memory, than the one before: lists, graphs or caches that grow."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.diagnosis.shape import rise
from caboose_daemon.incidents.diagnosis_record import Advice


class SlowingSteps(Cause):
    """The job makes itself slower."""

    id = "slowing_steps"
    title = "each step does more than the one before"
    explains = frozenset({"throughput_regression", "job_stalled"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Whether steps got longer little by little, and where."""
        grown = rise(case.curve("step_seconds"))
        if grown is not None:
            if grown.is_gradual:
                yield supports(STRONG, f"steps got longer little by little, {grown.factor:.2g} times in all")
            elif grown.is_jump:
                yield opposes(STRONG, f"steps got {grown.factor:.2g} times longer all at once")
        finding = case.finding("throughput_regression")
        if finding is not None and finding.phase in ("forward", "backward", "optimizer"):
            yield supports(FAIR, f"what grew is the job's own {finding.phase} phase")
        if case.found("data_starved", "straggler", "rank_silent"):
            yield opposes(FAIR, "the steps wait for something else")

    def advise(self, case: Case) -> Advice:
        """Look for what is kept from step to step."""
        finding = case.finding("throughput_regression")
        phase = finding.phase if finding is not None and finding.phase else "step"
        return Advice(
            first_fix=f"look for what the {phase} keeps from one step to the next: losses kept with their graph,"
            " lists, caches, memory banks",
            code="losses.append(loss.item())  # loss itself would keep its graph; deque(maxlen=N) for banks",
            avoid="do not only restart from time to time: it hides the leak until memory runs out",
            verify="the time of a step is the same at the end of an epoch as at its beginning",
        )
