"""One rank's own work takes longer than its peers': its machine, its storage, or code that runs only there."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

PLACES = {
    "data": ("waiting for data", "storage, loader workers and other readers of the same storage"),
    "forward": ("in the forward", "clocks, other processes, longer samples, and hooks on this rank only"),
    "optimizer": ("in the optimizer", "clocks, other processes, and a larger share of the optimizer's state"),
    "other": ("in other code", "logging, metrics and checkpoints on this rank only"),
}
"""Per phase: its name in a sentence, and what to check."""


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
            f"{case.who('straggler')} is {1000 * lag:.3g} ms slower than its peers, of {1000 * total:.3g} ms per step",
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
        look = PLACES.get(phase, ("", "clocks, other processes and storage"))[1]
        code = {
            "data": "loader = DataLoader(dataset, num_workers=8, persistent_workers=True, prefetch_factor=4)",
            "other": "if step % 100 == 0:  # do work of one rank for all rarely, or in a thread",
        }.get(phase, "")
        return Advice(
            first_fix=f"check {case.who('straggler')}: {look}; cordon its machine if that is slow",
            code=code,
            avoid="do not add ranks or enlarge the batch: every rank runs at the pace of the slowest",
            verify="the lag is gone; after exchanging two machines it stays with the machine or with the rank's code",
        )
