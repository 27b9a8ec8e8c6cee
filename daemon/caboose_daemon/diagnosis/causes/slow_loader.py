"""The data loader cannot keep up with the training."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.diagnosis.curves import rise
from caboose_daemon.format import seconds
from caboose_daemon.incidents.diagnosis_record import Advice

DATA_PHASES = ("data", "input")


class SlowLoader(Cause):
    """Reading or preparing samples takes longer than a step."""

    id = "slow_loader"
    title = "slow data loader"
    explains = frozenset({"data_starved", "throughput_regression", "job_stalled", "straggler"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        share, wait = case.value("data_starved", "share"), case.value("data_starved", "wait_seconds")
        if share is not None and wait is not None:
            text = f"{100 * share:.0f} % of the step time ({seconds(wait)}) is spent waiting for data"
            yield supports(STRONG if share > 0.2 else FAIR, text)
        elif case.is_quiet("data_starved"):
            yield opposes(STRONG, "steps hardly wait for data")
        workers = case.setting("num_workers")
        if workers == 0:
            yield supports(FAIR, "num_workers=0: samples are prepared in the training process")
        elif workers:
            yield supports(SLIGHT, f"{workers:.0f} workers are too few, or their storage is slow")
        slowed = case.finding("throughput_regression")
        if slowed is not None and slowed.phase:
            if slowed.phase in DATA_PHASES:
                yield supports(FAIR, "the wait for data grew")
            else:
                yield opposes(FAIR, f"the {slowed.phase} phase grew, not the wait for data")
        grown = rise(case.curve("data_seconds"))
        if grown is not None and grown.factor > 3 and grown.is_jump:
            text = f"the wait grew {grown.factor:.2g}x at once: the storage became slower, not the loader"
            yield opposes(SLIGHT, text)

    def advise(self, case: Case) -> Advice:
        workers, share = case.setting("num_workers"), case.value("data_starved", "share") or 0.5
        need = max(4, round((workers or 1) / max(0.05, 1 - share)))
        was = "" if workers is None else f"  # was num_workers={workers:.0f}"
        return Advice(
            first_fix="prepare batches ahead in more workers",
            code=f"loader = DataLoader(dataset, num_workers={min(16, need)}, persistent_workers=True){was}",
            avoid="do not add accelerators or tune the model: they already wait",
            verify="the wait for data is below 10 % of the step",
        )
