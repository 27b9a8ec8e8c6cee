"""straggler: one rank's own work takes longer than its peers', and they wait for it.

Design
------
In a synchronous job every rank's step takes equally long, whichever rank is slow: the fast ones wait inside
collectives. So the step's duration identifies no rank. Agents report how long a rank waited in the forward and in the
backward; the rest of the step is its own. The straggler has the *longest* own time and waits the *least*, since it
arrives last. Both are required, so a rank that is only measured differently, or that no rank waits for, is not named.
The phase is the part of its own time that exceeds its peers' most.

Where the waiting is not known (older agents, FSDP1), the whole backward counts as waiting under DDP, whose only
collective is there. Under FSDP every forward and backward waits for others' shards: then only the wait for data,
before the first collective, is a rank's own, and only that is judged.

One slow step, a checkpoint written by rank 0 or an evaluation is not enough: a rank must lag in most steps (a share
with an exponential memory), by a tenth of the step on average, by more than the noise of its own average, and by more
than the ranks differ anyway, so that neither batches of variable length nor a cluster of two kinds of machines makes
stragglers. And it must have cost `min_lost_seconds`: a busy machine holds up one process for many steps of a few
milliseconds. It never pages: a slow run is not lost.
"""

from dataclasses import dataclass

import numpy as np

from caboose_daemon.format import seconds
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import and_more
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.aligned import PHASES, AlignedStep, Float64, middle
from caboose_daemon.steps.view import JobView

PARTS = ("data", "forward", "loss", "backward", "optimizer", "other")
DATA, BACKWARD = PHASES.index("data"), PHASES.index("backward")
KNOWN = [PHASES.index(name) for name in PARTS[:-1]]
TO_SIGMA = 1.4826
SIGMAS = 6.0
"""Limit in standard deviations of its own noise and of the ranks' differences; 4,096 ranks reach five by chance."""
MOST_STEPS = 0.8
MAX_NAMED = 64


@dataclass(frozen=True)
class StragglerConfig(RuleConfig):
    """Thresholds of straggler."""

    lag_share: float = 0.1
    """Excess of a rank's own time over its peers', as a share of the step, that is reported."""
    memory_steps: int = 25
    """Steps over which the averages are taken; a rank is named after about 1.5 times as many."""
    min_lost_seconds: float = 1.0
    """Time that its peers must have waited for it as well; matters where steps take milliseconds."""


class _Lags:
    """By how much each rank's own time exceeds its peers', in shares of a step."""

    def __init__(self, num_ranks: int) -> None:
        self.mean = np.zeros(num_ranks)
        self.often = np.zeros(num_ranks)
        """Share of steps with more than half of the limit."""
        self._square = np.zeros(num_ranks)

    def learn(self, lag: Float64, rate: float, least: float) -> None:
        """Adds one step; a single one counts for at most a whole step's time."""
        lag = np.clip(lag, -1.0, 1.0)
        self.mean += rate * (lag - self.mean)
        self._square += rate * (lag * lag - self._square)
        self.often += rate * ((lag > 0.5 * least) - self.often)

    def stand_out(self, least: float, rate: float) -> Float64:
        """The ranks' lags above the typical one, where they are significant; else 0."""
        above = self.mean - middle(self.mean)
        is_slow = (above > least) & (self.often > MOST_STEPS)
        if not is_slow.any():
            return np.zeros(len(above))
        noise = np.sqrt(np.maximum(self._square - self.mean**2, 0.0) * rate / (2.0 - rate))
        spread = TO_SIGMA * float(middle(np.abs(above)))
        return np.where(is_slow & (above > SIGMAS * np.maximum(noise, spread)), above, 0.0)


class Straggler(Rule[StragglerConfig]):
    """A rank that the others wait for."""

    name = "straggler"
    config_class = StragglerConfig
    needs = frozenset({"phases"})
    muted_in = frozenset({"startup", "resume", "compile", "evaluation"})

    def __init__(self, config: StragglerConfig) -> None:
        super().__init__(config)
        self._own = _Lags(0)
        self._data = _Lags(0)
        self._parts = np.zeros((0, len(PARTS)))
        self._wait = np.zeros(0)
        self._layers: object = None
        self._is_sharded = False
        self._is_own_known = False
        self._num_held = 0
        self._slow_since: int | None = None
        self._lost_seconds = 0.0
        """That the peers waited since then."""
        self._onset: int | None = None
        self._host = ""

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every step while others wait for a rank."""
        step = view.step
        if step is None or step.num_present < 2 or step.num_present < len(step.present):
            return None  # the missing rank may be the slow one
        if view.layers is not self._layers:
            self._layers = view.layers
            self._is_sharded = any(layer.placement == "sharded" for layer in view.layers)
        if not self._learn(step):
            return None
        if self._num_held > 0:
            self._num_held -= 1
            return None
        return self._judge(view, step)

    def resume(self, finding: Finding) -> None:
        """Restores the onset; nothing is reported until the averages are known again."""
        self._onset = finding.onset_step
        self._num_held = 2 * self.config.memory_steps

    def _learn(self, step: AlignedStep) -> bool:
        phases = step.phases
        if len(self._wait) != len(phases):
            self._own, self._data = _Lags(len(phases)), _Lags(len(phases))
            self._parts, self._wait = np.zeros((len(phases), len(PARTS))), np.zeros(len(phases))
        total = step.typical_phases[0]
        has_data = bool(step.has_phases[:, DATA].all())
        has_backward = bool(step.has_phases[:, BACKWARD].all())
        if total is None or not total > 0 or not (has_data or has_backward):
            return False
        rate, least = 1.0 / self.config.memory_steps, self.config.lag_share
        if has_data:
            data = phases[:, DATA]
            self._data.learn((data - middle(data)) / total, rate, least)
        waits = _waits(step, is_sharded=self._is_sharded) if has_backward else None
        self._is_own_known = waits is not None
        if waits is not None:
            wait = waits.sum(axis=1)
            own = phases[:, 0] - wait
            self._own.learn((own - middle(own)) / total, rate, least)
            longest = -middle(-wait)  # the upper median: of two ranks, the one that waits
            self._wait += rate * (np.clip((longest - wait) / total, -1.0, 1.0) - self._wait)
            known = phases[:, KNOWN]
            known[:, PARTS.index("forward")] -= waits[:, 0]
            known[:, PARTS.index("backward")] -= waits[:, 1]
            parts = np.column_stack((known, own - known.sum(axis=1))) / total
            self._parts += rate * (parts - self._parts)
        return True

    def _judge(self, view: JobView, step: AlignedStep) -> Finding | None:
        least, rate = self.config.lag_share, 1.0 / self.config.memory_steps
        if self._onset is not None:
            least *= 0.5  # it is over when the lag has halved, so that a lag at the threshold is reported once
        by_data = self._data.stand_out(least, rate)
        lags = by_data
        if self._is_own_known:
            by_own = self._own.stand_out(least, rate)
            lags = np.maximum(by_data, np.where(self._wait >= 0.5 * by_own, by_own, 0.0))
        slow = np.flatnonzero(lags)
        if not len(slow) or len(slow) > max(1, len(lags) // 4):
            self._slow_since, self._lost_seconds = None, 0.0
            return self._over(step)
        slow = slow[np.argsort(-lags[slow], kind="stable")]
        worst = int(slow[0])
        self._slow_since = step.step if self._slow_since is None else self._slow_since
        self._lost_seconds += float(lags[worst]) * (step.typical_phases[0] or 0.0)
        if self._onset is None and self._lost_seconds < self.config.min_lost_seconds:
            return None
        phase = "data" if by_data[worst] >= 0.5 * lags[worst] else self._phase(worst)
        if self._onset is None:
            self._onset = self._slow_since
            rank = view.ranks.get(worst)
            self._host = f" ({rank.host})" if rank is not None and rank.host else ""
        lag, total = float(lags[worst]), step.typical_phases[0] or 0.0
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.WARNING),
            step=step.step,
            onset_step=self._onset,
            summary=(
                f"rank {worst}{self._host}{and_more(len(slow), 'rank')}: {seconds(lag * total)} of each"
                f" step of {seconds(total)} ({100 * lag:.0f} %) slower than its peers in {_NAMES[phase]},"
                f" since step {self._onset:,}"
            ),
            ranks=tuple(slow[:MAX_NAMED].tolist()),
            phase=phase,
            values={"lag_share": lag, "lag_seconds": lag * total, "step_seconds": total, "num_slow": float(len(slow))},
        )

    def _phase(self, rank: int) -> str:
        excess = self._parts[rank] - middle(self._parts)
        return PARTS[int(np.argmax(excess))]

    def _over(self, step: AlignedStep) -> Finding | None:
        onset, self._onset = self._onset, None
        if onset is None:
            return None
        return Finding(
            rule=self.name,
            severity=Severity.INFO,
            step=step.step,
            onset_step=onset,
            summary="no rank is slower than its peers any more",
            state="resolved",
        )


def _waits(step: AlignedStep, *, is_sharded: bool) -> Float64 | None:
    """How long each rank waited in forward and backward; None where that is not known."""
    waits = step.waits
    if waits is not None and np.isfinite(waits).all():
        return waits
    if is_sharded:
        return None
    backward = step.phases[:, BACKWARD]
    return np.column_stack((np.zeros(len(backward)), backward))


_NAMES = {
    "data": "waiting for data",
    "forward": "the forward",
    "loss": "code between forward and backward",
    "backward": "the backward",
    "optimizer": "the optimizer",
    "other": "code outside forward, backward and optimizer",
}
