"""data_starved: a large share of the step time is spent waiting for data.

Design
------
The share is the time that steps waited for data over the time that they took, both exponential averages of the median
over ranks (a single waiting rank is a `straggler`). Shares of single steps would not do: loaders with workers deliver
in bursts, and seven fast steps then hide the eighth that waits for all of them. But one long wait is not starvation
either, so a step counts for at most `CLIP` usual ones, and a minimum share of steps must wait.

The first batch of an epoch starts the workers and is left out, as are evaluation and compilation, whose time is not a
step's. A ticket must be worth its time: short waits, of `min_wait_seconds` to `long_wait_seconds` per step, are
reported once they have cost `min_lost_seconds` in all, or where steps mostly wait. In steps of a few
milliseconds any loader takes a good part, on a busy machine most of all, and such a run is soon over. It never pages:
a slow run is not lost.
"""

from dataclasses import dataclass

from caboose_daemon.format import seconds as as_text
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.aligned import PHASES, AlignedStep
from caboose_daemon.steps.view import JobView

DATA = PHASES.index("data")
CLIP = 10.0
OFTEN = 0.06
"""Share of steps that must wait: a starved loader with sixteen workers makes one step in sixteen wait."""
ROUNDING = 1e-9
MOST = 0.55
"""Share of the step above which a short wait is reported as well."""
CALM = 0.8
"""Share of the threshold below which it is resolved, so that a job at the threshold is reported once."""


@dataclass(frozen=True)
class DataStarvedConfig(RuleConfig):
    """Thresholds of data_starved."""

    warn_share: float = 0.1
    """Share of the step time spent waiting for data, above which it is reported."""
    severe_share: float = 0.2
    """Share above which the summary calls it severe; it stays a warning."""
    min_steps: int = 20
    """Steps before the first judgement."""
    memory_steps: int = 50
    """Steps over which the averages are taken."""
    min_wait_seconds: float = 0.001
    """Wait per step below which nothing is reported; asking any loader for a batch takes a fraction of this."""
    long_wait_seconds: float = 0.01
    """Wait per step that is reported at once."""
    min_lost_seconds: float = 60.0
    """Time lost in all, after which a shorter wait is reported."""


class DataStarved(Rule[DataStarvedConfig]):
    """The share of time spent waiting for data."""

    name = "data_starved"
    config_class = DataStarvedConfig
    needs = frozenset({"phases"})
    muted_in = frozenset({"compile", "evaluation"})
    forgets_after = frozenset({"data_switch", "resume"})

    def __init__(self, config: DataStarvedConfig) -> None:
        super().__init__(config)
        self._wait = 0.0
        self._total = 0.0
        self._often = 0.0
        self._lost = 0.0
        self._weight = 0.0
        self._num_steps = 0
        self._epoch: int | None = None
        self._onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every step while the job waits too much."""
        step = view.step
        if step is None:
            return None
        epoch, self._epoch = self._epoch, step.epoch
        if step.epoch != epoch:
            return None  # the first batch of an epoch
        total, wait = step.typical_phases[0], step.typical_phases[DATA]
        if total is None or wait is None or not (total > 0 and wait >= 0):
            return None
        self._learn(total, wait)
        if self._num_steps < self.config.min_steps:
            return None
        return self._judge(step)

    def resume(self, finding: Finding) -> None:
        """Restores the onset; the share is measured again."""
        self._onset = finding.onset_step

    def _learn(self, total: float, wait: float) -> None:
        rate = 1.0 / self.config.memory_steps
        if self._num_steps >= self.config.min_steps:
            most = CLIP * self._total / self._weight
            if total > most:
                wait, total = wait * most / total, most
        self._num_steps += 1
        self._lost += wait
        self._wait += rate * (wait - self._wait)
        self._total += rate * (total - self._total)
        self._often += rate * ((wait > self.config.warn_share * total) - self._often)
        self._weight += rate * (1.0 - self._weight)

    def _judge(self, step: AlignedStep) -> Finding | None:
        share, seconds = self._wait / self._total, self._total / self._weight
        is_known = self._onset is not None
        limit = self.config.warn_share * (CALM if is_known else 1.0)
        is_short = share * seconds < self._least_wait(share) * (CALM if is_known else 1.0)
        if share - limit <= ROUNDING or is_short or (not is_known and self._often / self._weight < OFTEN):
            return self._over(step, share)
        if self._onset is None:
            self._onset = step.step
        severe = " (severe)" if share > self.config.severe_share else ""
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.WARNING),
            step=step.step,
            onset_step=self._onset,
            summary=(
                f"waiting for data{severe}: {100 * share:.0f} % of a step of {as_text(seconds)} "
                f"(limit {100 * self.config.warn_share:.0f} %) since step {self._onset:,}"
            ),
            phase="input",
            values={"share": share, "step_seconds": seconds, "wait_seconds": share * seconds},
        )

    def _least_wait(self, share: float) -> float:
        """The wait per step from which it is reported."""
        config = self.config
        is_worth_it = self._lost >= config.min_lost_seconds or share >= MOST
        return config.min_wait_seconds if is_worth_it else config.long_wait_seconds

    def _over(self, step: AlignedStep, share: float) -> Finding | None:
        onset, self._onset = self._onset, None
        if onset is None:
            return None
        return Finding(
            rule=self.name,
            severity=Severity.INFO,
            step=step.step,
            onset_step=onset,
            summary=f"waiting for data is down to {100 * share:.0f} % of the step",
            phase="input",
            state="resolved",
            values={"share": share},
        )
