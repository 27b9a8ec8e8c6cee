"""The machine is slower than before: another process, throttling, a slower disk or network."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.diagnosis.curves import rise
from caboose_daemon.incidents.diagnosis_record import Advice


class MachineSlower(Cause):
    """The same work takes longer."""

    id = "machine_slower"
    title = "slower machine"
    explains = frozenset({"throughput_regression", "data_starved", "straggler"})
    rarity = 0.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        slowed = case.finding("throughput_regression")
        grown = rise(case.curve("step_seconds" if slowed is not None else "data_seconds"))
        if grown is not None and grown.is_jump:
            weight = STRONG if slowed is not None else FAIR  # a wait for data alone is the loader's or the storage's
            yield supports(weight, f"became {grown.factor:.2g}x slower all at once")
        elif grown is not None and grown.is_gradual:
            yield opposes(
                STRONG, f"became {grown.factor:.2g}x slower gradually, as when the job does more and more work"
            )
        elif grown is None and slowed is None and len(case.recent) >= 60:
            yield opposes(STRONG, "was as slow from the start")
        if slowed is not None and not slowed.phase:
            yield supports(FAIR, "all phases of the step take longer")
        elif slowed is not None and slowed.phase:
            yield opposes(FAIR, f"the {slowed.phase} phase alone explains most of it")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix=f"check the machines since step {case.onset:,}: other processes, clocks, heat, disk, network",
            code="nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE; top -b -n 1 | head -20; iostat -x 1 3",
            avoid="do not change batch size or model: the same work was faster before",
            verify="the step time is back at its value before the onset",
        )
