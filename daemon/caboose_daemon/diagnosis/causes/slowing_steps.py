"""Each step does more work, or keeps more memory, than the one before: lists, graphs or caches that grow."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.diagnosis.curves import rise
from caboose_daemon.incidents.diagnosis_record import Advice

FEW_SAMPLES = 8
MORE = 1.1
"""Growth of the memory that is no noise."""


class SlowingSteps(Cause):
    """A job whose steps become longer and longer."""

    id = "slowing_steps"
    title = "memory or work that grows with every step"
    explains = frozenset({"memory_growth", "throughput_regression", "job_stalled"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        grown = rise(case.curve("step_seconds"))
        if grown is not None:
            if grown.is_gradual:
                yield supports(STRONG, f"steps became {grown.factor:.2g}x longer gradually")
            elif grown.is_jump:
                yield opposes(STRONG, f"steps became {grown.factor:.2g}x longer all at once")
        kept = case.finding("memory_growth")
        if kept is not None:
            yield supports(STRONG, kept.summary)
        used = [num for _, num in case.memory("host")]
        if kept is None and len(used) >= FEW_SAMPLES and (more := used[-1] / max(1.0, used[len(used) // 4])) > MORE:
            yield supports(STRONG, f"memory of the process grew {more:.2g}x since a quarter of the samples")
        finding = case.finding("throughput_regression")
        if finding is not None and finding.phase in ("forward", "backward", "optimizer"):
            yield supports(FAIR, f"the {finding.phase} phase grew")
        if case.found("data_starved", "straggler", "rank_silent"):
            yield opposes(FAIR, "the steps wait for data or for another rank")

    def advise(self, case: Case) -> Advice:
        finding = case.finding("throughput_regression")
        phase = finding.phase if finding is not None and finding.phase else "step"
        return Advice(
            first_fix=f"find what the {phase} keeps from step to step: losses with their graph, lists, caches,"
            " memory banks",
            code="losses.append(loss.item())  # loss itself would keep its graph; deque(maxlen=N) for banks",
            avoid="do not only restart from time to time: it hides the leak until memory runs out",
            verify="memory and step time at the end of an epoch equal those at its start",
        )
