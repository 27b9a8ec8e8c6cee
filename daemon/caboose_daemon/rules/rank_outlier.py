"""rank_outlier: one rank's loss or own gradient stays far from its peers'.

Design
------
Ranks see different batches, so at every step some rank is highest: among 4,096 healthy ranks the largest loss is 3.5
standard deviations out at every single step. But no healthy rank *stays* there. So each step is scaled by the ranks'
own scatter in it (median and median absolute deviation, the latter smoothed over steps because that of a few ranks is
unsteady), limited to `CLIP`, and averaged per rank with an exponential memory. The average of i.i.d. noise stays within
a few tenths of zero for any number of ranks; that of a bad shard stays at the shard's offset.

A rank must stand out by three measures: by the scatter within steps; by the scatter of the ranks' averages (where every
rank has a different domain, all averages are wide and none is an outlier); and by its size, because with huge batches
the scatter is so small that a harmless difference is many scales. The gradient before the all-reduce, seen on sampled
steps, is judged in the same way on its logarithm, over fewer samples.

Two ranks have no peers: there the two losses must stay far apart (see `pair`).

It is never critical: a rank with NaN is `non_finite`'s, one with other weights is `replica_desync`'s, and shards that
are read file by file look like this for a while. Jobs that feed ranks differently on purpose set
`config={"heterogeneous_data": True}`.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import and_more
from caboose_daemon.rules.parts.pair import Pair
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.aligned import AlignedStep, Float64, middle
from caboose_daemon.steps.view import JobView

CLIP = 4.0
TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""
SPREADS = 6.0
"""Distance of an outlier from the ranks' averages, in their own scatter."""
MIN_RANKS = 3
MAX_NAMED = 64


@dataclass(frozen=True)
class RankOutlierConfig(RuleConfig):
    """Thresholds of rank_outlier."""

    scales: float = 2.0
    """Average distance of a rank from its peers, in scales of the ranks' scatter within a step, that is reported."""
    loss_share: float = 0.1
    """Distance as a share of the typical loss that is needed as well."""
    gradient_ratio: float = 1.5
    """Factor that is needed as well, for the gradient before the all-reduce."""
    memory_steps: int = 32
    """Steps over which the loss is averaged; more steps report later."""
    memory_samples: int = 8
    """Sampled steps over which the gradient is averaged."""


class _Distances:
    """How far each rank has been from its peers, in one number."""

    def __init__(self) -> None:
        self.apart = np.zeros(0)
        """Average of each rank's distance from the median, in scales."""
        self.distance = np.zeros(0)
        """The same in the number's unit."""
        self._scale = 0.0
        self._weight = 0.0

    def learn(self, values: Float64, is_seen: NDArray[np.bool_], memory: int, least: float) -> bool:
        """Adds the ranks' values of one step; whether there were enough of them.

        One step counts for at most `CLIP` scales, or `CLIP` times the least distance that matters.
        """
        if len(self.apart) != len(values):
            self.apart, self.distance = np.zeros(len(values)), np.zeros(len(values))
        are_all_seen = bool(is_seen.all())
        seen = values if are_all_seen else values[is_seen]
        if len(seen) < MIN_RANKS:
            return False
        rate = 1.0 / memory
        away = seen - middle(seen)
        self._scale += rate * (TO_SIGMA * float(middle(np.abs(away))) - self._scale)
        self._weight += rate * (1.0 - self._weight)
        scale = max(self._scale / self._weight, 1e-9 * float(np.abs(seen).max()), 1e-12)
        reach = CLIP * max(scale, least)
        distance = np.clip(away, -reach, reach)
        apart = np.clip(away / scale, -CLIP, CLIP)
        if are_all_seen:
            self.distance += rate * (distance - self.distance)
            self.apart += rate * (apart - self.apart)
        else:
            self.distance[is_seen] += rate * (distance - self.distance[is_seen])
            self.apart[is_seen] += rate * (apart - self.apart[is_seen])
        return True

    def outliers(self, scales: float, least: float, memory: int, *, is_known: bool) -> frozenset[int]:
        """Outliers by all three measures; half of each limit is enough once there is a known outlier."""
        factor = 0.5 if is_known else 1.0
        off = np.abs(self.apart - middle(self.apart))
        if float(off.max(initial=0.0)) <= factor * scales:
            return frozenset()
        of_noise = 1.0 / math.sqrt(2.0 * memory - 1.0)
        spread = SPREADS * max(TO_SIGMA * float(middle(off)), of_noise)
        is_far = (off > factor * max(scales, spread)) & (np.abs(self.distance) > factor * least)
        return frozenset(np.flatnonzero(is_far).tolist())


class RankOutlier(Rule[RankOutlierConfig]):
    """A rank whose loss or gradient stays far from its peers'."""

    name = "rank_outlier"
    config_class = RankOutlierConfig
    needs = frozenset({"loss"})
    forgets_after = frozenset({"data_switch", "resume"})

    def __init__(self, config: RankOutlierConfig) -> None:
        super().__init__(config)
        self._loss = _Distances()
        self._gradient = _Distances()
        self._pair = Pair(config.memory_steps)
        self._level = 0.0
        self._by_loss: frozenset[int] = frozenset()
        self._by_gradient: frozenset[int] = frozenset()
        self._num_held_steps = 0
        self._num_held_sampled = 0
        self._onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every step while a rank is an outlier."""
        step = view.step
        if step is None or step.world < 2 or view.config.get("heterogeneous_data"):
            return None
        self._watch_loss(step)
        if step.is_sampled:
            self._watch_gradient(step)
        ranks = tuple(sorted(self._by_loss | self._by_gradient))
        if not ranks:
            return self._over(step)
        if self._onset is None:
            self._onset = step.step
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.WARNING),
            step=step.step,
            onset_step=self._onset,
            summary=self._summary(ranks),
            ranks=ranks[:MAX_NAMED],
            phase="backward" if not self._by_loss else "forward",
            values=self._values(ranks[0]),
        )

    def resume(self, finding: Finding) -> None:
        """Keeps the outliers until enough was seen to judge them again."""
        self._onset = finding.onset_step
        self._num_held_steps, self._num_held_sampled = self.config.memory_steps, self.config.memory_samples
        self._by_loss = frozenset(finding.ranks) if finding.phase == "forward" else frozenset()
        self._by_gradient = frozenset(finding.ranks) if finding.phase == "backward" else frozenset()

    def _watch_loss(self, step: AlignedStep) -> None:
        config = self.config
        is_seen = step.has_loss & np.isfinite(step.loss)
        if not is_seen.any():
            return
        level = abs(float(middle(step.loss if is_seen.all() else step.loss[is_seen])))
        self._level += (level - self._level) / config.memory_steps if self._level else level
        least = config.loss_share * self._level
        if step.world == 2:
            self._watch_pair(step, is_seen)
            return
        if not self._loss.learn(step.loss, is_seen, config.memory_steps, least):
            return
        if self._num_held_steps > 0:
            self._num_held_steps -= 1
            return
        is_known = bool(self._by_loss)
        self._by_loss = self._loss.outliers(config.scales, least, config.memory_steps, is_known=is_known)

    def _watch_pair(self, step: AlignedStep, is_seen: NDArray[np.bool_]) -> None:
        if not is_seen.all():
            return
        pair = self._pair
        pair.learn(float(step.loss[0]), float(step.loss[1]))
        if not pair.is_ready:
            return
        odd = pair.odd(is_known=bool(self._by_loss))
        self._by_loss = frozenset() if odd is None else frozenset({odd})
        self._level = pair.higher - abs(pair.apart)
        self._loss.distance = np.array([pair.apart, -pair.apart])
        self._loss.apart = self._loss.distance / max(self._level, 1e-12)

    def _watch_gradient(self, step: AlignedStep) -> None:
        config = self.config
        norms = step.local_grad_norm
        is_seen = step.has_local_grad_norm & np.isfinite(norms) & (norms > 0)
        if not is_seen.any():
            return
        logs = np.log(np.where(is_seen, norms, 1.0))
        least = math.log(config.gradient_ratio)
        if not self._gradient.learn(logs, is_seen, config.memory_samples, least):
            return
        if self._num_held_sampled > 0:
            self._num_held_sampled -= 1
            return
        is_known = bool(self._by_gradient)
        self._by_gradient = self._gradient.outliers(config.scales, least, config.memory_samples, is_known=is_known)

    def _over(self, step: AlignedStep) -> Finding | None:
        onset, self._onset = self._onset, None
        if onset is None:
            return None
        return Finding(
            rule=self.name,
            severity=Severity.INFO,
            step=step.step,
            onset_step=onset,
            summary="no rank is an outlier any more",
            state="resolved",
        )

    def _values(self, rank: int) -> dict[str, float]:
        found = {"rank": float(rank), "loss_level": self._level}
        for name, distances in (("loss", self._loss), ("gradient", self._gradient)):
            if rank < len(distances.apart):
                found[f"{name}_scales"] = float(distances.apart[rank])
                found[f"{name}_distance"] = float(distances.distance[rank])
        return found

    def _summary(self, ranks: tuple[int, ...]) -> str:
        worst = ranks[0]
        parts = []
        if worst in self._by_loss and worst < len(self._loss.apart):
            away = float(self._loss.distance[worst])
            parts.append(f"loss {abs(away):.3g} {'above' if away > 0 else 'below'} its peers' {self._level:.3g}")
        if worst in self._by_gradient and worst < len(self._gradient.apart):
            factor = math.exp(float(self._gradient.distance[worst]))
            parts.append(f"own gradient {factor:.2g}x its peers'")
        what = " and ".join(parts) or "still an outlier"
        return f"rank {worst}{and_more(len(ranks), 'rank')}: {what}, since step {self._onset:,}"
