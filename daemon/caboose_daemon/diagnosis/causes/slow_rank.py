"""One rank's own work takes longer than its peers': its machine, its storage, or code that runs only there."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.format import seconds
from caboose_daemon.incidents.diagnosis_record import Advice

CODE = "logging, metrics, checkpoints and other code that only this rank runs"
PLACES = {
    "data": ("waiting for data", "storage, loader workers and other readers of the same storage"),
    "forward": ("in the forward", "clocks, other processes, longer samples, and hooks on this rank only"),
    "loss": ("between forward and backward", CODE),
    "backward": ("in the backward", "clocks, other processes, gradient hooks, and longer samples on this rank only"),
    "optimizer": ("in the optimizer", "clocks, other processes, and a larger share of the optimizer's state"),
    "other": ("outside of forward, backward and optimizer", CODE),
}
"""Per phase: its name in a sentence, and what to check."""
MACHINE = "; cordon its machine if that is slow"
LOADER_LINE = "loader = DataLoader(dataset, num_workers=8, persistent_workers=True, prefetch_factor=4)"
CODE_LINE = "if step % 100 == 0: validate(model)  # and any other work of one rank: rarely, or in a thread"


class SlowRank(Cause):
    """A rank that the others wait for."""

    id = "slow_rank"
    title = "slow rank"
    explains = frozenset({"straggler", "throughput_regression", "job_stalled", "data_starved"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        lag, total = case.value("straggler", "lag_seconds"), case.value("straggler", "step_seconds")
        finding = case.finding("straggler")
        if lag is None or not total or finding is None:
            if case.world > 1 and case.is_quiet("straggler"):
                yield opposes(STRONG, "all ranks take equally long")
            elif case.world == 1:
                yield opposes(STRONG, "only one rank")
            return
        yield supports(
            STRONG,
            f"{case.who('straggler')} is {seconds(lag)} slower than its peers, of {seconds(total)} per step",
        )
        if finding.phase in PLACES:
            yield supports(FAIR, f"the time is spent {PLACES[finding.phase][0]}; the others wait in the all-reduce")
        num = case.value("straggler", "num_slow")
        if num is not None and num > 1:
            yield opposes(FAIR, f"{num:.0f} ranks are slow: something they share, not one machine")
        if case.found("data_starved"):
            yield opposes(FAIR, "most ranks wait for data, not only this one")

    def advise(self, case: Case) -> Advice:
        finding = case.finding("straggler")
        phase = finding.phase if finding is not None else ""
        place, look = PLACES.get(phase, ("", "clocks, other processes and storage"))
        where = f", {place}" if place else ""
        code = CODE_LINE if look is CODE else LOADER_LINE if phase == "data" else ""
        return Advice(
            first_fix=f"check {case.who('straggler')}{where}: {look}" + ("" if look is CODE else MACHINE),
            code=code,
            avoid="do not add ranks or enlarge the batch: every rank runs at the pace of the slowest",
            verify="the lag is gone; after exchanging two machines it stays with the machine or with the rank's code",
        )
