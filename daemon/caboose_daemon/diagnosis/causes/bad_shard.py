"""One rank reads data unlike its peers': a shard that is mislabelled, corrupt, badly decoded, or of another domain."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import curves
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS
from caboose_daemon.incidents.diagnosis_record import Advice

LONG_STEPS = 50
"""Steps after which it is a shard and not a batch or two."""


class BadShard(Cause):
    """Data of one rank that differs from its peers'."""

    id = "bad_shard"
    title = "bad data shard on one rank"
    explains = BREAKS | {"rank_outlier", "bad_batch"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        member = case.episode("rank_outlier")
        parted = curves.ranks_parted(case)
        if parted is not None and case.found("replica_desync"):
            yield opposes(
                STRONG, "the replicas differ: the ranks' losses are those of other weights, not of other data"
            )
        elif parted is not None:
            now = f"{parted.low:.3g} to {parted.high:.3g} since step {case.onset:,}"
            text = f"the ranks' losses were near {parted.usual:.3g} and are {now}: same weights, so different data"
            yield supports(STRONG, text)
            if parted.num_steps >= LONG_STEPS:
                yield supports(FAIR, f"lasts for {parted.num_steps:,} steps: more than a batch or two")
        if member is None:
            if parted is None and case.world > 2 and case.is_quiet("rank_outlier"):
                yield opposes(STRONG, "no rank is an outlier")
            elif parted is None and case.world == 1:
                yield opposes(STRONG, "no second rank is known, and one rank reads everything")
            return
        who = case.who("rank_outlier")
        length = member.last.step - member.first.onset_step + 1
        away, level = case.value("rank_outlier", "loss_distance"), case.value("rank_outlier", "loss_level")
        if away is not None and level and abs(away) >= 0.1 * level:
            side = "above" if away > 0 else "below"
            yield supports(FAIR, f"loss of {who} stays {abs(away):.3g} {side} its peers' {level:.3g}")
        if length >= LONG_STEPS * case.gap:
            yield supports(FAIR, f"lasts for {length:,} steps: more than a batch or two")
        if case.found("replica_desync"):
            yield opposes(STRONG, "its weights differ from its peers' too: not only its data")
        elif case.sees("fingerprint") and case.is_quiet("replica_desync"):
            yield supports(FAIR, "all replicas are bit-identical: same weights, so different data")
        if case.found("bad_batch"):
            yield supports(SLIGHT, "inputs of this rank are outside the usual range")
        finding = case.finding("rank_outlier")
        if finding is not None and len(finding.ranks) > max(1, case.world // 4):
            yield opposes(FAIR, f"{len(finding.ranks)} of {case.world} ranks are outliers: not one shard")

    def advise(self, case: Case) -> Advice:
        finding = case.finding("rank_outlier")
        rank = finding.ranks[0] if finding is not None and finding.ranks else "R"
        return Advice(
            first_fix=f"compare samples and labels of {case.who('rank_outlier')} with another rank's",
            code=f"sampler = DistributedSampler(dataset, num_replicas={case.world}, rank={rank})  # reads its samples",
            avoid="do not lower the learning rate or drop the rank: another rank then gets the same shard",
            verify="when two ranks exchange their shards, the outlier moves with the shard",
        )
