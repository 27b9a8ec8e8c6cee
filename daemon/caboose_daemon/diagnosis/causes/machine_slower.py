"""The machine gives less than it did: another process, throttling, a slower disk or network."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.diagnosis.shape import rise
from caboose_daemon.incidents.diagnosis_record import Advice


class MachineSlower(Cause):
    """The same work takes longer."""

    id = "machine_slower"
    title = "the machine gives less than it did"
    explains = frozenset({"throughput_regression", "data_starved", "straggler"})
    rarity = 0.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Whether it came all at once, and over all phases alike."""
        slowed = case.finding("throughput_regression")
        grown = rise(case.curve("step_seconds" if slowed is not None else "data_seconds"))
        if grown is not None and grown.is_jump:
            yield supports(STRONG, f"it got {grown.factor:.2g} times slower all at once")
        elif grown is not None and grown.is_gradual:
            yield opposes(STRONG, "it got slower little by little, as a job does that does more and more")
        elif grown is None and slowed is None and len(case.recent) >= 60:
            yield opposes(STRONG, "it has been as slow from the start")
        if slowed is not None and not slowed.phase:
            yield supports(FAIR, "all phases of the step take longer, none stands out")
        elif slowed is not None and slowed.phase:
            yield opposes(FAIR, f"the {slowed.phase} phase alone stands for most of it")

    def advise(self, case: Case) -> Advice:
        """Look at the machine at the time it happened."""
        return Advice(
            first_fix=f"look at the machines since step {case.onset}: other processes, clocks, heat, disk, network",
            code="nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE; top; iostat -x 1",
            avoid="do not change the batch size or the model: the same work was faster before",
            verify="a step takes as long as before the onset again",
        )
