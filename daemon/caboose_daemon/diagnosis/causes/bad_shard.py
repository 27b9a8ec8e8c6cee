"""One rank reads data unlike its peers': a shard that is mislabelled, corrupt, badly decoded, or of another domain."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS
from caboose_daemon.incidents.diagnosis_record import Advice

LONG_STEPS = 50
"""A batch or two are over by then; a shard is not."""


class BadShard(Cause):
    """The data of one rank."""

    id = "bad_shard"
    title = "a bad shard of the data"
    explains = BREAKS | {"rank_outlier", "bad_batch"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """One rank's loss stays apart, while its weights are those of the others."""
        member = case.episode("rank_outlier")
        if member is None:
            if case.world > 2 and case.is_quiet("rank_outlier"):
                yield opposes(STRONG, "no rank stays apart from its peers")
            return
        who = case.who("rank_outlier")
        length = member.last.step - member.first.onset_step + 1
        away, level = case.value("rank_outlier", "loss_distance"), case.value("rank_outlier", "loss_level")
        if away is not None and level and abs(away) >= 0.1 * level:
            side = "above" if away > 0 else "below"
            yield supports(FAIR, f"the loss of {who} stays {abs(away):.3g} {side} its peers' {level:.3g}")
        if length >= LONG_STEPS * case.gap:
            yield supports(FAIR, f"it has lasted for {length} steps: more than a batch or two")
        if case.found("replica_desync"):
            yield opposes(STRONG, "its weights are not its peers' either: the rank is ill, and not its data")
        elif case.sees("fingerprint") and case.is_quiet("replica_desync"):
            yield supports(FAIR, "all replicas are equal to the last bit: same weights, so other data")
        if case.found("bad_batch"):
            yield supports(SLIGHT, "the rank's inputs lie outside of what was usual")
        finding = case.finding("rank_outlier")
        if finding is not None and len(finding.ranks) > max(1, case.world // 4):
            yield opposes(FAIR, f"{len(finding.ranks)} of {case.world} ranks are apart: not one shard")

    def advise(self, case: Case) -> Advice:
        """Look at the shard of the rank that is named."""
        finding = case.finding("rank_outlier")
        rank = finding.ranks[0] if finding is not None and finding.ranks else "R"
        return Advice(
            first_fix=f"look at the samples and labels of {case.who('rank_outlier')}, beside another rank's",
            code=f"sampler = DistributedSampler(dataset, num_replicas={case.world}, rank={rank})  # read what it reads",
            avoid="do not lower the learning rate or drop the rank: the same shard goes to another rank then",
            verify="with shards exchanged between two ranks the outlier moves with the shard",
        )
