"""One rank's own work takes longer than its peers': its machine, its storage, or code that runs there alone."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

PLACES = {
    "data": ("reads its data", "its storage, its loader's workers and what else reads from there"),
    "forward": ("runs its forward", "its clocks and neighbours, longer samples, and hooks that are set there alone"),
    "optimizer": (
        "runs its optimizer",
        "its clocks and neighbours, and whether it holds more of the optimizer's state",
    ),
    "other": ("runs other code", "logging, metrics and checkpoints that are done on this rank alone"),
}


class SlowRank(Cause):
    """The others wait for it."""

    id = "slow_rank"
    title = "one rank is slower than its peers"
    explains = frozenset({"straggler", "throughput_regression", "job_stalled", "data_starved"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Who is waited for, how long, and in what."""
        lag, total = case.value("straggler", "lag_seconds"), case.value("straggler", "step_seconds")
        finding = case.finding("straggler")
        if lag is None or not total or finding is None:
            if case.world > 1 and case.is_quiet("straggler"):
                yield opposes(STRONG, "no rank is waited for: all take equally long")
            elif case.world == 1:
                yield opposes(STRONG, "there is one rank only")
            return
        yield supports(
            STRONG,
            f"{case.who('straggler')} needs {1000 * lag:.3g} ms more than its peers in steps of {1000 * total:.3g} ms",
        )
        if finding.phase in PLACES:
            yield supports(
                FAIR, f"the time goes where it {PLACES[finding.phase][0]}; the others spend it in the all-reduce"
            )
        num = case.value("straggler", "num_slow")
        if num is not None and num > 1:
            yield opposes(FAIR, f"{num:.0f} ranks are slow: rather what they share than one machine")
        if case.found("data_starved"):
            yield opposes(FAIR, "most ranks wait for their data, not this one alone")

    def advise(self, case: Case) -> Advice:
        """Where to look depends on the phase."""
        finding = case.finding("straggler")
        phase = finding.phase if finding is not None else ""
        look = PLACES.get(phase, ("", "its clocks, neighbours and storage"))[1]
        code = {
            "data": "loader = DataLoader(dataset, num_workers=8, persistent_workers=True, prefetch_factor=4)",
            "other": "if step % 100 == 0:  # what one rank does for all, it does rarely, or in a thread",
        }.get(phase, "")
        return Advice(
            first_fix=f"look at {case.who('straggler')}: {look}; if its machine is slow, cordon it",
            code=code,
            avoid="do not add ranks or a larger batch: every rank goes at the pace of the slowest",
            verify="the lag is gone; with two machines exchanged it stays with the machine, or with the rank's code",
        )
