"""dead_units: many units of a ReLU layer are zero for every sample.

Design
------
A healthy ReLU layer is 50 to 90 % zeros, at other units for each sample. A unit is dead if it was zero for all samples
of a whole window of sampled steps. The agent counts this (it subsamples batch and tokens, never units). Each rank has
its own data, so the smallest share over the ranks is the best bound on what is dead everywhere. A window of few samples
means little: a unit that is active for one sample in a hundred would look dead, so small windows are not judged.

A large share is a warning, except where the run has learned: trained nets have such layers and work, so there a share
up to `critical_share` is a note. It is critical where units are *dying*: the share passed `critical_share`, stayed
there for a second window, and was clearly lower not long before.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule, and_more
from caboose_daemon.rules.parts.progress import Progress
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import MOVING_OBJECTIVE, JobView

WINDOW = 8
"""Sampled steps in the agent's window."""
DRIFT = 0.02
"""Rise of the share from window to window that does not count as dying."""
LEARNED = 0.3
"""Share of its first loss that a run which has learned has come down by."""
LOSS_MEMORY = 32.0
CALM = 0.9
"""Share of the threshold below which it is resolved, so that a layer at the threshold is reported once."""


@dataclass(frozen=True)
class DeadUnitsConfig(RuleConfig):
    """Thresholds of dead_units."""

    share: float = 0.4
    """Share of dead units of a layer above which it is reported."""
    critical_share: float = 0.6
    """Share above which a dying layer is critical."""
    rise: float = 0.1
    """Recent rise of the share that makes a layer a dying one."""
    min_samples: int = 128
    """Samples per rank and window below which nothing is judged, where the number is known."""


class DeadUnits(LastingRule[DeadUnitsConfig]):
    """Layers with many dead units."""

    name = "dead_units"
    config_class = DeadUnitsConfig
    needs = frozenset({"activations"})

    def __init__(self, config: DeadUnitsConfig) -> None:
        super().__init__(config)
        self._floor: NDArray[np.float64] = np.zeros(0)
        self._last_share: NDArray[np.float64] = np.zeros(0)
        self._progress = Progress()
        self._level = 0.0
        """Of the recent losses."""

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every window in which a layer has too many dead units."""
        step = view.step
        if step is not None and (loss := step.finite_loss) is not None:
            self._progress.observe(loss, view)
            self._level += (loss - self._level) / min(self._progress.num, LOSS_MEMORY)
        found = step.module_values("activation_dead") if step is not None and step.is_sampled else None
        if step is None or found is None or 2 * len(found.ranks) < view.world:
            return None
        shares = np.where(found.is_known, found.values, np.inf).min(axis=0)
        seen = np.isfinite(shares)
        if not seen.any() or self._is_window_small(view, step):
            return None
        shares = np.where(seen, shares, np.nan)
        dying = self._follow(shares)
        limit = self.config.share * (CALM if self.is_open else 1.0)
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero(shares > limit)
        if not len(rows):
            return self._resolved(step.step, f"no layer above {100 * self.config.share:.0f} % dead ReLUs any more")
        rows = rows[np.argsort(-shares[rows], kind="stable")]
        is_critical = bool(dying[rows].any())
        names = [view.modules[row].name if row < len(view.modules) else f"module {row}" for row in rows.tolist()]
        rising = ", rising" if is_critical else ""
        is_usual = shares[rows[0]] <= self.config.critical_share and self._has_learned(view)
        return self._found(
            Severity.CRITICAL if is_critical else Severity.INFO if is_usual else Severity.WARNING,
            step.step,
            f"dead ReLUs: {100 * shares[rows[0]]:.0f} % of {names[0]} (limit {100 * self.config.share:.0f} %)"
            f"{and_more(len(rows), 'layer')}{rising}, {self._since(step.step)}",
            layers=tuple(names),
            phase="forward",
            values={"share": float(shares[rows[0]]), "num_layers": float(len(rows))},
        )

    def _has_learned(self, view: JobView) -> bool:
        """Whether the run works in spite of it; where the objective moves, its loss does not show that it does not."""
        gained = self._progress.gained(self._level)
        return MOVING_OBJECTIVE in view.visible or gained >= LEARNED * abs(self._progress.first)

    def _is_window_small(self, view: JobView, step: AlignedStep) -> bool:
        samples = None if step.num_samples is None else step.num_samples / max(1, step.num_present)
        if samples is None:
            samples = view.setting("batch_size")
        return samples is not None and samples * WINDOW < self.config.min_samples

    def _follow(self, shares: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which layers are dying: high for two windows, and higher than recently."""
        more = len(shares) - len(self._floor)
        if more > 0:
            self._floor = np.append(self._floor, np.full(more, np.nan))
            self._last_share = np.append(self._last_share, np.full(more, np.nan))
        num = len(shares)
        unseen = np.isnan(shares)
        self._floor[:num] = np.where(unseen, self._floor[:num], np.fmin(shares, self._floor[:num] + DRIFT))
        with np.errstate(invalid="ignore"):
            is_high = np.minimum(shares, self._last_share[:num]) > self.config.critical_share
            dying: NDArray[np.bool_] = is_high & (shares - self._floor[:num] >= self.config.rise)
        self._last_share[:num] = np.where(unseen, self._last_share[:num], shares)
        return dying
