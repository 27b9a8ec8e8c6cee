"""loss_spike: the loss is far above its own recent level; follows whether it recovers.

Design
------
A step is high when the mean loss exceeds its baseline by scale *and* by ratio, and by more than this run's own outliers
(the baseline's tail). The first high step opens an episode, which freezes the baseline: no high step of it is learned
(an outlier cannot hide the next one), and the episode ends only when the loss is back near the level before it, so a
divergence is never learned as normal. An outlier of one step that was no spike is learned when it is over: it is normal
for this run. A declared change (a data switch, a new batch size) starts a new baseline instead. A run that recovered
from several such rises is reported only when a rise is higher or longer than those (see `past_spikes`).

One high step is an outlier batch and an info, unless it is at `outlier_ratio` times the level, and in a live run, of
which every batch is seen, has undone `undone_at_once` of what the run gained. It is a warning at a
second high step, or when the gradient norm jumped with it or just before. It is critical with that jump and a second
high step, at a second row of a log that is above the run's start, or after `persist_steps` high steps, if it undoes
more than `critical_share` of the run's improvement. The state compares the excess with its peak: recovering, lingering,
diverging. For a loss that has been negative a ratio means nothing; its height is measured by the run's improvement so
far (see `progress`).

Each rank's loss is that of its own data: where most high steps are high at the same few ranks alone, those are named.
Spikes at one rank after the other are those of the model.

The level is learned from the first `warmup_steps`, but from no more than a quarter of a log whose length is known.

The mean over a short batch, the last of an epoch, scatters more: by the root of how much shorter it is. It is judged by
that scale, and not learned.
"""

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from caboose_daemon.rules.parts.baseline import Baseline
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.hindsight import share_of
from caboose_daemon.rules.parts.past_spikes import PastSpikes
from caboose_daemon.rules.parts.progress import Progress
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView

NORM_LEAD_STEPS = 5
"""Steps by which a jump of the gradient norm may precede the loss and still belong to the spike."""
LINGERING_STEPS = 30
SAMPLED_STEPS = 100
"""Steps whose median batch is the usual one."""
WARMUP_SHARE = 0.25
"""Share of a log from which the level is learned, at most."""
LEAST_WARMUP = 10
FEW_HIGH = 0.1
"""Share of the peak's height below which the typical step of a live run's spike is a usual one."""
LAST = 9
"""Losses of a spike whose median shows how high it stays."""
APART = 0.25
"""Height over that of the highest rank, above which a rank is high too."""
SHORT = 2.0
"""How much shorter than usual a short batch is, at least."""


@dataclass(frozen=True)
class LossSpikeConfig(RuleConfig):
    """Thresholds of loss_spike."""

    scales: float = 6.0
    """Height above the level, in scales of the recent scatter, that is high. Raise it for very noisy losses."""
    ratio: float = 1.25
    """Loss over its level that is needed as well; guards runs with a tiny scatter."""
    outlier_ratio: float = 2.0
    """Loss over its level at which a single step is a warning."""
    tails: float = 2.0
    """Height over that of the run's own outliers (one step in a hundred) that is needed as well."""
    persist_steps: int = 3
    """High steps after which it is critical even if the gradient norm did not jump."""
    critical_share: float = 0.05
    """Share of the run's improvement that the last few steps of a spike must undo to be critical: of losses near zero,
    single ones are many times the others."""
    undone_at_once: float = 0.75
    """Share of the improvement that a single step of a live run must undo to be a warning, unless the gradient norm
    jumped with it: where most samples are right, one that is wrong makes a batch's loss many times the usual one."""
    calm_steps: int = 3
    """Steps near the old level before it is resolved."""
    warning_share: float = 0.003
    """Share of the improvement that a spike must undo to be more than an info: a task that is solved has losses near
    zero, of which every batch's is many times the last one's."""
    warmup_steps: int = 20
    """Steps from which the level is learned before anything is judged."""


@dataclass
class _Episode:
    onset: int
    level: float
    scale: float
    tail: float
    peak: float
    peak_step: int
    began_at: int = 0
    """Number of losses seen before it."""
    is_reported: bool = False
    num_high: int = 0
    apart: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """Of the high steps: how many were high at some ranks alone, by those ranks."""
    num_calm: int = 0
    has_norm_jump: bool = False
    last: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))
    """Losses since its onset."""
    is_live: bool = False
    """Whether every step of the run is seen, with the noise of its batch."""
    is_lost: bool = False
    """Whether a row of a log, which stands for many steps, is above the run's start: all that was learned is lost."""
    worst: Severity = Severity.INFO

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks at which alone it was high in most of its steps; none where that is not known, or it was at all."""
        ranks, num = next(iter(self.apart.most_common(1)), ((), 0))
        return ranks if 2 * num > self.num_high else ()


class LossSpike(Rule[LossSpikeConfig]):
    """The loss far above its recent level."""

    name = "loss_spike"
    config_class = LossSpikeConfig
    judges_parts = True
    needs = frozenset({"loss"})
    assumes_falling_loss = True
    forgets_after = frozenset({"data_switch", "batch_ramp", "resume"})

    def __init__(self, config: LossSpikeConfig) -> None:
        super().__init__(config)
        self._progress = Progress()
        self._past = PastSpikes()
        self._loss = Baseline(self.config.warmup_steps)
        self._norm = Baseline(self.config.warmup_steps)
        self._last_norm_jump = -math.inf
        self._episode: _Episode | None = None
        self._ranks_before: set[tuple[int, ...]] = set()
        """Of the spikes that were reported before."""
        self._num_samples: deque[int] = deque(maxlen=SAMPLED_STEPS)

    def observe(self, view: JobView) -> Finding | None:
        """A finding at the first high step and at every step until the loss has recovered."""
        step = view.step
        if step is None or (loss := step.finite_loss) is None:
            return None  # NaN and infinity are non_finite's
        if step.stands_for_many and not self._progress.num:
            self._loss = Baseline(int(min(self.config.warmup_steps, share_of(view, WARMUP_SHARE, LEAST_WARMUP))))
        self._watch_norm(step.step, step.finite_grad_norm)
        self._progress.observe(loss, view)
        if self._episode is not None:
            self._episode.is_lost = step.stands_for_many and loss > self._progress.first
            return self._follow(self._episode, step, loss)
        baseline, spread = self._loss, self._spread(step.num_samples)
        if not baseline.is_ready or not self._is_high(loss, baseline.level, spread * baseline.scale, baseline.tail):
            if spread == 1.0:
                baseline.learn(loss)
            return None
        self._episode = _Episode(
            onset=step.step,
            level=baseline.level,
            scale=baseline.scale,
            tail=baseline.tail,
            peak=loss,
            peak_step=step.step,
            began_at=self._progress.num,
            is_live=bool(step.reports) or step.is_from_journal,
        )
        return self._follow(self._episode, step, loss)

    def resume(self, finding: Finding) -> None:
        """The level before the spike is in the finding; a new baseline is learned afterwards."""
        values = finding.values
        self._progress.restore(values.get("first", values["level"]), values["level"])
        self._episode = _Episode(
            onset=finding.onset_step,
            level=values["level"],
            scale=values["scale"],
            tail=values["tail"],
            peak=values["peak"],
            peak_step=finding.onset_step,
            is_reported=True,
            num_high=int(values["num_high"]),
            apart=Counter({tuple(finding.ranks): int(values["num_high"])}),
            worst=finding.severity,
        )

    def _spread(self, num_samples: int | None) -> float:
        """How much more the loss of a batch of this size scatters than a usual one's; 1 unless it is half as large."""
        if not num_samples:
            return 1.0
        self._num_samples.append(num_samples)
        ratio = median(self._num_samples) / num_samples
        return math.sqrt(ratio) if ratio >= SHORT else 1.0

    def _is_high(self, loss: float, level: float, scale: float, tail: float) -> bool:
        if loss - level <= (self.config.ratio - 1.0) * self._progress.size(level):
            return False
        return (loss - level) / scale > max(self.config.scales, self.config.tails * tail)

    def _watch_norm(self, step: int, norm: float | None) -> None:
        if norm is None or norm <= 0:
            return
        value = math.log(norm)
        if self._norm.is_ready and self._norm.excess(value) > self.config.scales and value - self._norm.level > 0.7:
            self._last_norm_jump = step
        self._norm.learn(value)

    def _follow(self, episode: _Episode, at: AlignedStep, loss: float) -> Finding | None:
        step = at.step
        episode.last.append(loss)
        if loss > episode.peak:
            episode.peak, episode.peak_step = loss, step
        near = max(3.0 * episode.scale, 0.05 * abs(episode.level))
        is_near = loss <= episode.level + near
        episode.num_calm = episode.num_calm + 1 if is_near else 0
        if self._is_high(loss, episode.level, episode.scale, episode.tail):
            episode.num_high += 1
            episode.apart[_ranks_apart(at, episode.level)] += 1
        episode.has_norm_jump |= step - self._last_norm_jump <= NORM_LEAD_STEPS
        if episode.num_calm >= self.config.calm_steps:
            return self._end(episode, step, loss)
        if not episode.is_reported and self._is_usual(episode):
            return None
        episode.is_reported = True
        severity = episode.worst = max(episode.worst, self._severity(episode), key=lambda s: s.rank)
        norm = "; the gradient norm jumped too" if episode.has_norm_jump else ""
        summary = f"loss high: {loss:.4g} against {episode.level:.4g} before step {episode.onset:,}{norm}"
        return self._finding(episode, step, loss, severity, self._triage(episode, step, loss), summary)

    def _is_usual(self, episode: _Episode) -> bool:
        length = self._progress.num - episode.began_at
        return self._past.is_usual(episode.began_at, episode.peak - episode.level, length)

    def _severity(self, episode: _Episode) -> Severity:
        num, height = episode.num_high, episode.peak - episode.level
        stays = num >= self.config.persist_steps or (num >= 2 and (episode.has_norm_jump or episode.is_lost))
        stays_high = min(height, median(episode.last) - episode.level)
        if stays and stays_high >= self.config.critical_share * self._progress.gained(episode.level):
            return Severity.CRITICAL
        if height < self.config.warning_share * self._progress.gained(episode.level):
            return Severity.INFO
        if episode.is_live and stays_high < FEW_HIGH * height:
            num = min(num, 1)  # odd batches among usual ones
        is_tall = height > (self.config.outlier_ratio - 1.0) * self._progress.size(episode.level)
        if episode.is_live:
            is_tall &= height > self.config.undone_at_once * self._progress.gained(episode.level)
        return Severity.WARNING if num >= 2 or episode.has_norm_jump or is_tall else Severity.INFO

    def _triage(self, episode: _Episode, step: int, loss: float) -> str:
        if step == episode.onset:
            return "open"
        share = (loss - episode.level) / (episode.peak - episode.level)
        if share <= 0.5:
            return "recovering"
        if episode.peak_step > episode.onset and step - episode.peak_step <= 2 and step - episode.onset >= 5:
            return "diverging"
        return "lingering" if step - episode.onset >= LINGERING_STEPS else "open"

    def _end(self, episode: _Episode, step: int, loss: float) -> Finding | None:
        self._episode = None
        if episode.num_high == 1:
            self._loss.learn(episode.peak)
        self._loss.learn(loss)
        if episode.worst is not Severity.INFO or not episode.is_reported:
            now = self._progress.num
            self._past.add(now, episode.peak - episode.level, now - episode.began_at)
        if not episode.is_reported:
            return None
        summary = f"loss back at {loss:.4g} after a peak of {episode.peak:.4g}, {step - episode.onset:,} steps later"
        finding = self._finding(episode, step, loss, Severity.INFO, "resolved", summary)
        self._ranks_before.add(episode.ranks)
        return finding

    def _finding(
        self, episode: _Episode, step: int, loss: float, severity: Severity, state: str, summary: str
    ) -> Finding:
        return Finding(
            rule=self.name,
            severity=self.capped(severity),
            step=step,
            onset_step=episode.onset,
            summary=summary,
            state=state,
            ranks=episode.ranks if self._ranks_before <= {episode.ranks} else (),
            values={
                "loss": loss,
                "level": episode.level,
                "scale": episode.scale,
                "tail": episode.tail,
                "peak": episode.peak,
                "num_high": float(episode.num_high),
                "first": self._progress.first,
            },
        )


def _ranks_apart(step: AlignedStep, level: float) -> tuple[int, ...]:
    """The ranks whose loss alone is above the level, where those of most others are near it."""
    if len(step.loss) < 2 or not step.has_loss.all():
        return ()
    above = step.loss - level
    high = np.flatnonzero(above > APART * above.max())
    return tuple(high.tolist()) if 2 * len(high) <= len(above) else ()
