"""Memory, link or chip of one rank produces wrong numbers: a flipped bit, a corrupt transfer."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS
from caboose_daemon.incidents.diagnosis_record import Advice

FEW_LAYERS = 0.25
"""Share of layers up to which a difference is one location in memory, and not a whole update."""


class HardwareFault(Cause):
    """Wrong numbers from the hardware of one rank."""

    id = "hardware_fault"
    title = "hardware fault on one rank"
    explains = BREAKS | {"replica_desync", "rank_outlier"}
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        if case.found("replica_desync"):
            yield from self._weigh_replicas(case)
        elif case.sees("fingerprint") and case.is_quiet("replica_desync") and not case.found("non_finite"):
            yield opposes(FAIR, "all replicas are bit-identical")  # a bad number is younger than the last sample
        for hunt in case.hunts[:1]:
            if hunt.where == "parameter" and 0 < hunt.num_tensors <= 2:
                yield supports(FAIR, f"one location in the weights is bad, the batch is not: {hunt.summary}")
            elif hunt.where != "parameter":
                yield opposes(STRONG, f"the batch fails again in a NaN hunt: {hunt.summary}")
        finding = case.finding("non_finite")
        if finding is not None and case.world > 1:
            if len(finding.ranks) == 1 and finding.phase != "input":
                yield supports(FAIR, f"bad numbers started on rank {finding.ranks[0]} only")
            elif finding.phase == "input":
                yield opposes(STRONG, "its inputs were already not finite")
        if case.world == 1 or (finding is not None and len(finding.ranks) > 1):
            text = "only one rank" if case.world == 1 else "started on more than one rank at once"
            yield opposes(FAIR, f"{text}: hardware fails on one of several")

    def _weigh_replicas(self, case: Case) -> Iterator[Evidence]:
        odd, ranks = case.value("replica_desync", "odd_ranks"), case.value("replica_desync", "ranks")
        if odd == 1 and ranks:
            yield supports(FAIR, f"replica on {case.who('replica_desync')} differs, the other {ranks - 1:.0f} agree")
        elif odd is not None and odd > 1:
            yield opposes(FAIR, f"{odd:.0f} replicas differ: hardware fails on one rank at a time")
        layers, total = case.value("replica_desync", "layers"), len(case.layers)
        if layers and total >= 4:
            if layers <= max(1.0, FEW_LAYERS * total):
                yield supports(STRONG, f"{layers:.0f} of {total} layers differ: one location in memory, not an update")
            else:
                yield opposes(STRONG, f"{layers:.0f} of {total} layers differ: a whole update, not one location")
        last_equal = case.value("replica_desync", "last_equal")
        if last_equal is not None and last_equal >= 0:
            yield supports(SLIGHT, f"all replicas were equal at step {last_equal:,.0f}")
        elif last_equal is not None:
            yield opposes(STRONG, "the replicas differed from the start")

    def advise(self, case: Case) -> Advice:
        rule = next((r for r in ("replica_desync", "non_finite", "rank_outlier") if case.found(r)), case.incident.rule)
        equal = case.value("replica_desync", "last_equal")
        since = f" up to step {equal:,.0f}" if equal is not None and equal >= 0 else " from before it began"
        return Advice(
            first_fix=f"cordon the machine of {case.who(rule)}, test its memory and resume from a checkpoint{since}",
            code="dist.broadcast(p.data, src=0)  # for every parameter, from a good rank, if there is no checkpoint",
            avoid="do not restart on the same machine, or from a checkpoint that this rank wrote",
            verify="without the machine the replicas stay equal for at least as many steps; its memory test fails",
        )
