"""One run in numbers: loss, speed, incidents, learning rate."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caboose_daemon.offline.comparing.levels import Level, broken_since, course, level_at, scatter
from caboose_daemon.offline.runs.run import Run

LEARNS = 0.95
"""A run whose best loss is above this share of its first loss did not learn and sets no common goal."""
WARM = 0.99


@dataclass(frozen=True)
class Measures:
    """A field is None if the run does not have it."""

    last_step: int
    num_attempts: int
    num_retaken: int
    """Steps repeated after a restart; their first values are ignored."""
    first: float | None
    best: float | None
    best_step: int | None
    final: Level | None
    at_common: Level | None
    """At the last step all runs reached."""
    not_finite_since: int | None
    """The step since which the loss is not finite, at the common step or at the run's end."""
    validation_best: float | None
    validation_best_step: int | None
    validation_final: float | None
    steps_to_common: int | None
    samples_to_common: float | None
    seconds_to_common: float | None
    scatter: float | None
    num_bad: int
    rules: dict[str, int] = field(default_factory=dict)
    """Incidents by lead rule."""
    num_critical: int = 0
    num_spikes: int = 0
    lr_peak: float | None = None
    lr_final: float | None = None
    lr_warm_step: int | None = None
    samples_per_step: float | None = None
    step_seconds: float | None = None
    shape: tuple[float, ...] = ()
    """The loss in up to 40 medians, for a sparkline."""

    @property
    def standing(self) -> float | None:
        """The value used for ranking: its level at the common step; infinity if its loss is not finite."""
        if self.not_finite_since is not None:
            return math.inf
        return None if self.at_common is None else self.at_common.value

    @property
    def num_incidents(self) -> int:
        return sum(self.rules.values())

    def as_object(self) -> dict[str, Any]:
        """For `--json`."""
        plain = {key: value for key, value in vars(self).items() if not isinstance(value, Level) and key != "shape"}
        levels = {
            key: None if level is None else {"value": level.value, "error": _finite(level.error)}
            for key, level in (("final", self.final), ("at_common", self.at_common))
        }
        return {**plain, **levels, "num_incidents": self.num_incidents}


def common_step(runs: Sequence[Run]) -> int:
    """The last step that all runs reached."""
    return min((run.last_step for run in runs), default=0)


def common_loss(runs: Sequence[Run]) -> float | None:
    """The lowest loss reached by all runs that learn and stay finite; None if fewer than two do."""
    step = common_step(runs)
    sound = [run for run in runs if _broken(run, step) is None]
    bests = [best for run in sound for first, best, _ in [_extremes(run)] if best is not None and _learns(first, best)]
    return max(bests) if len(bests) >= 2 else None


def measure(run: Run, step: int, goal: float | None) -> Measures:
    """The run in numbers; `step` and `goal` are common to all runs."""
    losses, values = run.losses(), run.curve("loss")[1]
    first, best, best_step = _extremes(run)
    reached = _reached(run, goal)
    rates = run.curve("lr")
    warm = np.flatnonzero(rates[1] >= WARM * rates[1].max(initial=0.0))
    seconds = run.curve("step_seconds")[1]
    step_seconds = float(np.median(seconds)) if len(seconds) else None
    checked = [(value, at) for at, value, _ in run.validations if np.isfinite(value)]
    batch = run.samples_per_step
    rules = Counter(str(incident["rule"]) for incident in run.incidents if incident["worst"] != "info")
    members = [member["rule"] for incident in run.incidents for member in incident["members"]]
    parts = np.array_split(values, min(40, len(values))) if len(values) else []
    return Measures(
        last_step=run.last_step,
        num_attempts=run.num_attempts,
        num_retaken=int((~run.surviving).sum()) * run.steps_per_row,
        first=first,
        best=best,
        best_step=best_step,
        final=level_at(*losses, run.last_step),
        at_common=level_at(*losses, step),
        not_finite_since=_broken(run, step),
        validation_best=min(checked)[0] if checked else None,
        validation_best_step=min(checked)[1] if checked else None,
        validation_final=checked[-1][0] if checked else None,
        steps_to_common=reached,
        samples_to_common=reached * batch if reached is not None and batch else None,
        seconds_to_common=reached * step_seconds if reached is not None and step_seconds else None,
        scatter=scatter(values),
        num_bad=int(run.num_bad.sum()),
        rules=dict(rules.most_common()),
        num_critical=sum(incident["worst"] == "critical" for incident in run.incidents),
        num_spikes=members.count("loss_spike"),
        lr_peak=float(rates[1].max()) if len(rates[1]) else None,
        lr_final=float(rates[1][-1]) if len(rates[1]) else None,
        lr_warm_step=int(rates[0][warm[0]]) if len(warm) else None,
        samples_per_step=batch,
        step_seconds=step_seconds,
        shape=tuple(float(np.median(part)) for part in parts),
    )


def _extremes(run: Run) -> tuple[float | None, float | None, int | None]:
    """The first level, the best one and its step."""
    steps, values = course(*run.curve("loss"))
    if not len(values):
        return None, None, None
    place = int(values.argmin())
    return float(values[0]), float(values[place]), int(steps[place])


def _broken(run: Run, step: int) -> int | None:
    """The step since which its loss is not finite, at this step or at its end."""
    at = [broken_since(*run.losses(), place) for place in (step, run.last_step)]
    return at[1] if at[0] is None else at[0]


def _learns(first: float | None, best: float) -> bool:
    return first is None or best < first - (1 - LEARNS) * abs(first)


def _reached(run: Run, goal: float | None) -> int | None:
    if goal is None:
        return None
    steps, values = course(*run.curve("loss"))
    places = np.flatnonzero(values <= goal)
    return int(steps[places[0]]) if len(places) else None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
