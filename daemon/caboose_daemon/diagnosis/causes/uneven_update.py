"""One rank updates its weights otherwise than its peers: a skipped step, code on one rank alone, no common start."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

MANY_LAYERS = 0.5


class UnevenUpdate(Cause):
    """Code that does not do the same on every rank."""

    id = "uneven_update"
    title = "an update that not every rank makes"
    explains = frozenset({"replica_desync", "rank_outlier", "loss_spike", "divergence"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """How much of the model differs, on how many ranks, and since when."""
        if not case.found("replica_desync"):
            if case.sees("fingerprint") and case.is_quiet("replica_desync"):
                yield opposes(STRONG, "all replicas are equal to the last bit")
            return
        layers, total = case.value("replica_desync", "layers"), len(case.layers)
        if layers and total >= 4:
            if layers >= MANY_LAYERS * total:
                yield supports(STRONG, f"{layers:.0f} of {total} layers differ, as after an update more or less")
            elif layers <= max(1.0, 0.25 * total):
                yield opposes(STRONG, f"only {layers:.0f} of {total} layers differ: an update moves them all")
        odd, ranks = case.value("replica_desync", "odd_ranks"), case.value("replica_desync", "ranks")
        if odd is not None and ranks and ranks > 2 and odd != 1:
            yield supports(FAIR, f"the replicas of {ranks:.0f} ranks differ, and not by one rank alone")
        last_equal = case.value("replica_desync", "last_equal")
        if last_equal is not None and last_equal < 0:
            yield supports(STRONG, "the replicas were never equal: they were made from different seeds or checkpoints")
        elif last_equal is not None:
            yield supports(
                SLIGHT, f"they were equal at step {last_equal:.0f}: what runs on some steps only is to blame"
            )

    def advise(self, case: Case) -> Advice:
        """Decide on all ranks together."""
        return Advice(
            first_fix="find what asks the rank or its own loss before optimizer.step(); decide on all ranks together",
            code="dist.all_reduce(is_bad, op=dist.ReduceOp.MAX)  # then every rank skips the update, or none does",
            avoid="do not average the replicas and go on: the next such step takes them apart again",
            verify="no finding of replica_desync over the steps at which it came apart",
        )
