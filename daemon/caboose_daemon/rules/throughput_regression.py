"""throughput_regression: the job does less work per second than it did before.

Design
------
Work is tokens where they are reported, else samples, else steps. The baseline is the best rate that the job has
sustained (an average over `baseline_steps` that only moves up): a baseline that follows the rate would sink along with
it. The present rate is a shorter average of logarithms, in which one slow step counts for at most a factor of `CLIP`.

A slowdown must exceed `slowdown` *and* the noise of that average, for `recent_steps`, so that batches of varying
length are not reported, and must have cost `min_lost_seconds`: a ticket must be worth its time, and a busy machine
slows thousands of steps of a few milliseconds. Steps that grow from one part of the run to the next, each time, to
`grown_times` of their first length are reported at once: so grows the work on what a loop keeps (`memory_growth`),
while a machine that is busy with something else is slower now and then.
Start-up, compilation and evaluation are left out; a batch ramp, a data switch and a resume start a new baseline. The
phase that grew most is named. It never pages: a slow run is not lost. Where the objective moves and only steps are
counted it is a note: an episode of a better policy is longer, and so is its step.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from caboose_daemon.format import amount, seconds
from caboose_daemon.rules.parts.curve import Curve
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting import Lasting
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.aligned import PHASES, AlignedStep
from caboose_daemon.steps.view import MOVING_OBJECTIVE, JobView

CLIP = math.log(3.0)
SIGMAS = 6.0
NEVER = 10**18
PARTS = 12
"""Parts of a run whose steps take longer and longer; by chance they are hardly ever in order."""
CALM = 0.5
"""Share of the limit below which it is resolved."""


@dataclass(frozen=True)
class ThroughputRegressionConfig(RuleConfig):
    """Thresholds of throughput_regression."""

    slowdown: float = 0.2
    """Share by which the rate is below the baseline that is reported."""
    recent_steps: int = 50
    """Steps over which the present rate is taken, and for which it must stay low."""
    min_lost_seconds: float = 10.0
    """Time that it must have cost as well; matters where steps take milliseconds."""
    grown_times: float = 2.0
    """Factor by which the time of a step has grown, without ever falling, that is reported whatever it has cost."""
    baseline_steps: int = 200
    """Steps over which the baseline is taken; nothing is judged before half as many."""


class ThroughputRegression(Rule[ThroughputRegressionConfig]):
    """Less work per second than the job's own best."""

    name = "throughput_regression"
    config_class = ThroughputRegressionConfig
    needs = frozenset({"phases"})
    muted_in = frozenset({"startup", "resume", "compile", "evaluation"})
    forgets_after = frozenset({"batch_ramp", "data_switch", "resume"})

    def __init__(self, config: ThroughputRegressionConfig) -> None:
        super().__init__(config)
        self._unit = ""
        self._num_steps = 0
        self._recent = 0.0
        self._square = 0.0
        self._slow = 0.0
        self._best = -math.inf
        self._phases = np.zeros(len(PHASES))
        self._usual_phases = np.zeros(len(PHASES))
        self._lasting = Lasting(config.recent_steps, config.recent_steps // 2)
        self._lost_seconds = 0.0
        self._times = Curve()
        """Logarithms of the time per unit of work."""

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every step while the job is slower than its baseline."""
        step = view.step
        if step is None:
            return None
        seconds = step.typical_phases[0]
        unit, work = _work(step)
        if seconds is None or not (seconds > 0 and work > 0):
            return None
        if unit != self._unit:
            self._unit, self._num_steps, self._best, self._times = unit, 0, -math.inf, Curve()
        self._lost_seconds += seconds * max(0.0, 1.0 - math.exp(self._recent - self._best)) if self._num_steps else 0.0
        self._learn(math.log(work / seconds), np.array([phase or 0.0 for phase in step.typical_phases]))
        if self._num_steps < self.config.baseline_steps // 2:
            return None
        is_work_known = unit != "steps" or MOVING_OBJECTIVE not in view.visible
        return self._judge(step, Severity.WARNING if is_work_known else Severity.INFO)

    def resume(self, finding: Finding) -> None:
        """The baseline is in the finding."""
        values = finding.values
        self._unit = next((unit for unit in ("tokens", "samples", "steps") if unit in values), "steps")
        self._best = math.log(values["baseline"])
        self._recent = self._slow = math.log(values[self._unit])
        self._square = self._recent**2
        self._num_steps = self.config.baseline_steps
        self._lasting.restore(finding.onset_step)

    def _learn(self, rate: float, phases: np.ndarray) -> None:
        config = self.config
        self._num_steps += 1
        if self._num_steps == 1:
            self._recent = self._slow = rate
            self._square = rate * rate
        else:
            rate = min(max(rate, self._slow - CLIP), self._slow + CLIP)
        self._times.add(-rate)
        recent = 1.0 / min(self._num_steps, config.recent_steps)
        self._recent += recent * (rate - self._recent)
        self._square += recent * (rate * rate - self._square)
        self._slow += (rate - self._slow) / min(self._num_steps, config.baseline_steps)
        self._phases += recent * (np.minimum(phases, 10.0 * phases[0]) - self._phases)
        if self._num_steps >= config.baseline_steps // 2 and self._slow > self._best:
            self._best = self._slow
            self._usual_phases = self._phases.copy()

    def _judge(self, step: AlignedStep, severity: Severity) -> Finding | None:
        config = self.config
        below = self._best - self._recent
        noise = math.sqrt(max(self._square - self._recent**2, 0.0) / (2.0 * config.recent_steps - 1.0))
        least = -math.log1p(-min(config.slowdown, 0.99))
        limit = least * CALM if self._lasting.is_open else max(least, SIGMAS * noise)
        is_slow = below > limit
        if not (is_slow or self._lasting.is_open):
            self._lost_seconds = 0.0
        if not self._lasting.is_open:  # its steps count only once it has cost enough
            has_cost = self._lost_seconds >= config.min_lost_seconds or self._grows()
            self._lasting.persist = config.recent_steps if has_cost else NEVER
        verdict = self._lasting.judge(step.step, is_slow)
        if verdict == "quiet":
            return None
        now, before = math.exp(self._recent), math.exp(self._best)
        name, grown = self._grown()
        assert self._lasting.onset is not None, "the condition has begun"
        slower = f"{100 * (1 - now / before):.0f} % slower"
        summary = (
            f"{amount(now)} {self._unit}/s against {amount(before)}, {slower} since step {self._lasting.onset:,}{grown}"
        )
        if verdict == "resolved":
            summary = f"back at {amount(now)} {self._unit}/s, best {amount(before)}"
        return Finding(
            rule=self.name,
            severity=self.capped(severity) if verdict == "open" else Severity.INFO,
            step=step.step,
            onset_step=self._lasting.onset,
            summary=summary,
            phase=name,
            state=verdict,
            values={self._unit: now, "baseline": before, "slowdown": 1 - now / before},
        )

    def _grows(self) -> bool:
        """Whether steps have taken longer in each part of the run than in the part before."""
        means = self._times.means
        if len(means) < 2 * PARTS or self._times.num_points < self.config.baseline_steps // 2:
            return False
        size = len(means) // PARTS
        levels = [median(means[-size * (PARTS - i) :][:size]) for i in range(PARTS)]
        is_rising = all(later > earlier for earlier, later in pairwise(levels))
        return is_rising and levels[-1] - levels[0] > math.log(self.config.grown_times)

    def _grown(self) -> tuple[str, str]:
        """The phase that explains most of the slowdown, if one does, and its times as text."""
        more = self._phases - self._usual_phases
        most = 1 + int(np.argmax(more[1:]))
        if not self._usual_phases[0] or more[most] < 0.5 * more[0] or more[0] <= 0:
            return "", ""
        name = PHASES[most]
        shown = "time between forward and backward" if name == "loss" else name
        return name, f"; {shown} went from {seconds(self._usual_phases[most])} to {seconds(self._phases[most])}"


def _work(step: AlignedStep) -> tuple[str, int]:
    if step.num_tokens is not None:
        return "tokens", step.num_tokens
    return ("samples", step.num_samples) if step.num_samples is not None else ("steps", 1)
