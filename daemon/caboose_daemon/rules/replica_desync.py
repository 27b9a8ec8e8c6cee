"""replica_desync: replicas of one model that should be bit-identical differ.

Design
------
Under data parallelism every rank applies the same averaged gradient to the same parameters, so their fingerprints are
bit-identical, or something is wrong: a flipped bit, a rank that skipped an update, code that changes parameters on one
rank. There is no noise in this, hence no baseline and no threshold. Agents take fingerprints of parameters only
(BatchNorm's buffers differ by design) and of replicated models only (shards differ by design).

A majority decides which rank is wrong: the ranks outside a strict majority are named. With two ranks, or a tie, no rank
is named. The layer comes from the layers' own fingerprints: the first in the model's order.

One sample is a warning, the second is critical: from then on the all-reduce averages gradients of different models.
Runs whose replicas are meant to differ between averagings declare `config={"local_sgd": True}`.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView

MAX_NAMED = 64
"""Most ranks that a finding lists."""


@dataclass(frozen=True)
class ReplicaDesyncConfig(RuleConfig):
    """Thresholds of replica_desync."""

    critical_samples: int = 2
    """Sampled steps with differing replicas before it is critical."""


@dataclass
class _Episode:
    onset: int
    last_equal: int
    odd: tuple[int, ...]
    layers: tuple[str, ...]
    num_sampled: int = 0


class ReplicaDesync(Rule[ReplicaDesyncConfig]):
    """Replicas that differ from the others."""

    name = "replica_desync"
    config_class = ReplicaDesyncConfig
    needs = frozenset({"fingerprint"})

    def __init__(self, config: ReplicaDesyncConfig) -> None:
        super().__init__(config)
        self._last_equal = -1
        self._episode: _Episode | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every sampled step at which the replicas differ."""
        step = view.step
        if step is None or not step.is_sampled or view.config.get("local_sgd"):
            return None
        prints = {rank: r.fingerprint for rank, r in step.reports.items() if r.fingerprint is not None}
        if len(prints) < 2:
            return None
        groups = Counter(prints.values()).most_common()
        if len(groups) == 1:
            return self._equal(step, prints)
        common, votes = groups[0]
        has_majority = votes * 2 > len(prints)
        odd = tuple(sorted(rank for rank, value in prints.items() if value != common)) if has_majority else ()
        return self._differ(view, step, prints, common, odd)

    def resume(self, finding: Finding) -> None:
        """Restores ranks and layer."""
        values = finding.values
        self._episode = _Episode(
            finding.onset_step,
            int(values["last_equal"]),
            finding.ranks,
            finding.layers,
            int(values.get("num_sampled", 0)),
        )

    def _differ(
        self, view: JobView, step: AlignedStep, prints: dict[int, int], common: int, odd: tuple[int, ...]
    ) -> Finding:
        if self._episode is None:
            self._episode = _Episode(step.step, self._last_equal, odd, ())
        episode = self._episode
        if not episode.odd or not set(episode.odd) <= set(odd):
            episode.odd = odd  # with more reports, or more differing ranks, the majority may be clearer
        layers, num_layers = _differing_layers(view, step, prints, common)
        episode.layers = episode.layers or layers
        episode.num_sampled += 1
        is_critical = episode.num_sampled >= self.config.critical_samples
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.CRITICAL if is_critical else Severity.WARNING),
            step=step.step,
            onset_step=episode.onset,
            summary=_summary(episode, num_layers, len(prints), len(set(prints.values()))),
            ranks=episode.odd[:MAX_NAMED],
            layers=episode.layers,
            phase="update",
            values={
                "num_sampled": float(episode.num_sampled),
                "last_equal": float(episode.last_equal),
                "odd_ranks": float(len(odd)),
                "ranks": float(len(prints)),
                "layers": float(num_layers),
            },
        )

    def _equal(self, step: AlignedStep, prints: dict[int, int]) -> Finding | None:
        episode = self._episode
        if episode is None or len(prints) < step.world:
            # Only reports of all ranks can show that all are equal, and so that it is over.
            self._last_equal = step.step if len(prints) == step.world else self._last_equal
            return None
        self._last_equal, self._episode = step.step, None
        return Finding(
            rule=self.name,
            severity=Severity.INFO,
            step=step.step,
            onset_step=episode.onset,
            summary=f"replicas of all {len(prints)} ranks are equal again",
            ranks=episode.odd[:MAX_NAMED],
            layers=episode.layers,
            phase="update",
            state="resolved",
        )


def _differing_layers(
    view: JobView, step: AlignedStep, prints: dict[int, int], common: int
) -> tuple[tuple[str, ...], int]:
    """The first layer in which any rank differs from the most common replica, and the number of such layers."""
    seen = {rank: step.reports[rank].arrays.get("layer_fingerprint") for rank in prints}
    reference = next((seen[rank] for rank, value in prints.items() if value == common), None)
    if reference is None:
        return (), 0
    differs = np.zeros(len(reference), dtype=np.bool_)
    for rank, value in prints.items():
        layers = seen[rank]
        if value != common and layers is not None and len(layers) == len(reference):
            differs |= layers != reference
    rows = np.flatnonzero(differs)
    names = (view.layers[int(rows[0])].name,) if len(rows) and rows[0] < len(view.layers) else ()
    return names, len(rows)


def _summary(episode: _Episode, num_layers: int, num_ranks: int, num_versions: int) -> str:
    if not episode.odd:
        who = f"replicas of {num_ranks} ranks differ: {num_versions} versions, no majority"
    elif len(episode.odd) == 1:
        who = f"replica on rank {episode.odd[0]} differs from the other {num_ranks - 1}"
    else:
        shown = ", ".join(map(str, episode.odd[:8])) + (" ..." if len(episode.odd) > 8 else "")
        who = f"replicas on {len(episode.odd)} of {num_ranks} ranks differ from the rest ({shown})"
    where = f", first in {episode.layers[0]} (layers that differ: {num_layers})" if episode.layers else ""
    if episode.last_equal >= 0:
        return f"{who}{where}, last equal at step {episode.last_equal:,}"
    return f"{who}{where}, since step {episode.onset:,}"
