"""Ranks update their weights differently: a skipped step, code on one rank only, different initial weights."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

MANY_LAYERS = 0.5


class UnevenUpdate(Cause):
    """An update that is not the same on every rank."""

    id = "uneven_update"
    title = "different updates on different ranks"
    explains = frozenset({"replica_desync", "rank_outlier", "loss_spike", "divergence"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        if not case.found("replica_desync"):
            if case.sees("fingerprint") and case.is_quiet("replica_desync"):
                yield opposes(STRONG, "all replicas are bit-identical")
            return
        layers, total = case.value("replica_desync", "layers"), len(case.layers)
        if layers and total >= 4:
            if layers >= MANY_LAYERS * total:
                yield supports(STRONG, f"{layers:.0f} of {total} layers differ, as after a missing or extra update")
            elif layers <= max(1.0, 0.25 * total):
                yield opposes(STRONG, f"only {layers:.0f} of {total} layers differ: an update changes them all")
        odd, ranks = case.value("replica_desync", "odd_ranks"), case.value("replica_desync", "ranks")
        if odd is not None and ranks and ranks > 2 and odd != 1:
            yield supports(FAIR, f"replicas of {ranks:.0f} ranks differ, not of one rank only")
        last_equal = case.value("replica_desync", "last_equal")
        if last_equal is not None and last_equal < 0:
            yield supports(STRONG, "the replicas were never equal: different seeds or checkpoints")
        elif last_equal is not None:
            yield supports(
                SLIGHT, f"replicas were equal at step {last_equal:,.0f}: suspect code that runs on some steps"
            )

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="find conditions on rank or local loss before optimizer.step(), and decide on all ranks together",
            code="dist.all_reduce(is_bad, op=dist.ReduceOp.MAX)  # then every rank skips the update, or none does",
            avoid="do not average the replicas and continue: they differ again after the next such step",
            verify="no replica_desync over the steps at which the replicas diverged",
        )
