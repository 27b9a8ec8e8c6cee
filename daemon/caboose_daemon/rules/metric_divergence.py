"""metric_divergence: validation loss and validation metric disagree, or the validation is not a real one.

Design
------
Eight conditions, each over several evaluations:

- the loss rises while accuracy stays: the model is over-confident, its probabilities are no longer calibrated;
- the loss falls while accuracy stays, below what it could be: what is learned is not what is measured;
- the loss is exactly the same between evaluations while the weights moved: it is cached, or not evaluated;
- the metric is at chance while the loss is good: the metric itself is wrong;
- the same two of training: its loss falls while its accuracy stays, or is good while its accuracy is at chance;
- the training loss stays high while the evaluations are answered far better than it allows, and no dropout makes
  training samples harder: training labels are wrong, where those of the evaluation are right;
- the loss is far above the training loss before any sample could be memorised: the data differs, or is prepared
  otherwise. It is judged where chance is known, so that the two losses have one scale: the loss of pairs, for one,
  depends on the size of the batch.

Exact equality is tested on the numbers as reported; a rounded log may repeat one by chance, hence more than two in a
row. Where all values have few decimals, equal ones count only once the training loss has fallen by a tenth meanwhile.
At its ceiling a metric has nowhere to go, whatever the loss does. The metric is the first one whose name means that
higher is better. The finding's values name the condition.
"""

import math
from dataclasses import dataclass

from caboose_daemon.rules.parts.chance import known, right_at
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rounding import Rounding
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.training_divergence import TrainingDivergence
from caboose_daemon.rules.parts.validation import Validation, of_events
from caboose_daemon.steps.settings import as_text
from caboose_daemon.steps.view import JobView

FEW_EPOCHS = 2.0
"""Epochs below which nothing can be memorised."""
LEARNED = 0.8
"""Share of chance below which a training loss shows that something was learned."""
TRAIN_MEMORY = 20
STANDS = 0.95
"""Share of an earlier training loss above which it has hardly fallen since."""
LITTLE_DROPOUT = 0.2
SURELY_BETTER = 0.15
"""Accuracy above that which the training loss allows."""
CEILING = 0.95
"""A score above this has little room to rise."""
PERFECT = 0.995
"""A score above this is no sign of a model that is too sure of its answers."""
HALF = frozenset({"bfloat16", "float16"})
MOVED = 0.9
"""Share of the training loss at the first of equal rounded evaluations, below which the weights have moved."""


@dataclass(frozen=True)
class MetricDivergenceConfig(RuleConfig):
    """Thresholds of metric_divergence."""

    evaluations: int = 3
    """Evaluations in a row on which the condition must hold."""
    rise: float = 0.2
    """Rise of the loss above its best, as a share, while the metric stays."""
    fall: float = 0.3
    """Fall of the loss since the metric last changed, as a share."""
    hold: float = 0.01
    """Change of the metric, as a share, up to which it counts as unchanged, from its best or from its last change."""
    apart: float = 2.0
    """Validation over training loss in the first two epochs, above which the two never belonged together."""
    gap: float = 0.1
    """Distance of the two as a share of chance that is needed as well."""
    noisy_train: float = 0.6
    """Training loss as a share of chance from which its labels may be noise."""
    noisy_gap: float = 0.08
    """Share by which the validation loss is below the training loss then."""
    chance: float = 1.2
    """Metric over chance (1 / num_classes) below which it is at chance."""


KINDS = ("calibration", "stalled", "equal", "chance", "apart", "noisy", "train_chance", "train_stalled")
"""The conditions; also keys of the finding's values."""


class MetricDivergence(Rule[MetricDivergenceConfig]):
    """Validation loss and metric that disagree."""

    name = "metric_divergence"
    config_class = MetricDivergenceConfig
    needs = frozenset({"loss"})
    assumes_falling_loss = True
    forgets_after = frozenset({"data_switch"})

    def __init__(self, config: MetricDivergenceConfig) -> None:
        super().__init__(config)
        self._best_loss = math.inf
        self._best_score = -math.inf
        self._last_loss = math.nan
        self._last_step = -1
        self._still_since: tuple[float, float] | None = None
        """Score and loss when the score last changed."""
        self._counts = dict.fromkeys(KINDS, 0)
        self._rounding = Rounding()
        self._is_half = False
        """Whether the weights have few digits, and what is computed with them."""
        self._train_when_equal = math.nan
        """The training loss at the first of the evaluations that are equal."""
        self._training = TrainingDivergence(config.fall, config.hold, CEILING, config.chance)
        self._train = math.nan
        """The recent training loss."""
        self._noisy_since = (-1, math.inf)
        """The last step that was counted as noisy, and the training loss at the first of them."""
        self._num_to_wait = 0
        """Evaluations before an episode that was open at a restart may end: it takes as many to see it again."""
        self._onset: int | None = None
        self._kind = ""
        self._summary = ""
        self._values: dict[str, float] = {}

    def observe(self, view: JobView) -> Finding | None:
        """Judged at each evaluation; a finding at every step until the two agree again."""
        step = view.step
        if step is None:
            return None
        if step.mean_loss is not None and step.finite_loss is None:
            self._train = math.nan  # what it was before says nothing about the model that is evaluated now
        elif (train := step.finite_loss) is not None:
            self._train = train if math.isnan(self._train) else self._train + (train - self._train) / TRAIN_MEMORY
        is_judged = bool(view.events)
        if self._training.add(step.finite_loss, step.metrics):
            is_judged = True
            self._count("train_stalled", self._training.is_stalled)
            self._count("train_chance", self._training.is_at_chance(known(view)))
        if not is_judged:
            return self._finding(step.step, "open") if self._onset is not None else None
        for validation in of_events(view.events):
            self._num_to_wait = max(0, self._num_to_wait - 1)
            self._is_half = view.facts.get("precision") in HALF
            self._evaluate(validation, step.step, view.setting("num_classes"))
            if math.isfinite(validation.loss):
                self._count("apart", self._is_apart(view, step.step, validation.loss))
                self._count_noisy(view, step.step, validation)
        kind = next((name for name, count in self._counts.items() if count >= self.config.evaluations), None)
        if kind is not None:
            self._onset = self._onset if self._onset is not None else step.step
            self._kind, self._summary = kind, self._describe(kind)
        elif self._onset is not None and not self._num_to_wait:
            finding = self._finding(step.step, "resolved")
            self._onset = None
            return finding
        return self._finding(step.step, "open") if self._onset is not None else None

    def resume(self, finding: Finding) -> None:
        """Restores onset, kind and values; the next evaluations decide."""
        self._onset, self._summary, self._values = finding.onset_step, finding.summary, dict(finding.values)
        self._kind = next((name for name in self._counts if self._values.pop(name, None) is not None), "")
        self._num_to_wait = self.config.evaluations + 1

    def _evaluate(self, validation: Validation, step: int, num_classes: float | None) -> None:
        loss, scored = validation.loss, validation.score
        self._count_equal(loss, step)
        if math.isfinite(loss):
            self._rounding.add(loss)
            self._best_loss = min(self._best_loss, loss)
        if scored is None or not (math.isfinite(loss) and math.isfinite(scored[1])):
            return
        score = scored[1]
        self._best_score = max(self._best_score, score)
        self._values = {"loss": loss, "score": score, "best_loss": self._best_loss, "best_score": self._best_score}
        holds = score >= self._best_score - self.config.hold * abs(self._best_score)
        self._count("calibration", holds and score < PERFECT and loss > (1 + self.config.rise) * self._best_loss > 0)
        self._count("stalled", self._is_stalled(score, loss))
        is_known = num_classes is not None and num_classes >= 2
        is_at_chance = is_known and score < self.config.chance / (num_classes or 1)
        self._count("chance", is_at_chance and loss < 0.5 * math.log(num_classes or 1))

    def _count_equal(self, loss: float, step: int) -> None:
        is_equal = loss == self._last_loss and step > self._last_step
        if not is_equal:
            self._train_when_equal = self._train
        is_coarse = self._is_half or self._rounding.is_coarse_at(loss)
        if not is_equal or not is_coarse or self._train < MOVED * self._train_when_equal:
            self._count("equal", is_equal)
        self._last_loss, self._last_step = loss, step

    def _is_apart(self, view: JobView, step: int, loss: float) -> bool:
        """Whether the validation loss is far above the training loss while samples are new."""
        batch, size = view.setting("batch_size"), view.setting("dataset_length")
        is_new = bool(batch and size) and step * (batch or 0) * view.world < FEW_EPOCHS * (size or 0)
        if not (is_new or self._counts["apart"] >= self.config.evaluations) or not 0 < self._train < loss:
            return False
        self._values |= {"loss": loss, "train": self._train}
        chance = known(view)
        if chance is None:
            return False
        far = loss - self._train > self.config.gap * chance
        return far and self._train < LEARNED * chance and loss > self.config.apart * self._train

    def _count_noisy(self, view: JobView, step: int, validation: Validation) -> None:
        """Counts steps, and not evaluations of each rank, while the training loss stands: it may only lag behind."""
        since_step, since = self._noisy_since
        if not self._is_noisy(view, validation):
            self._noisy_since, self._counts["noisy"] = (step, self._train), 0
        elif not self._train >= STANDS * since:
            self._noisy_since, self._counts["noisy"] = (step, self._train), 1
        elif step > since_step:
            self._noisy_since = step, since
            self._counts["noisy"] += 1

    def _is_noisy(self, view: JobView, validation: Validation) -> bool:
        """Whether training samples are answered far worse than other ones, of which most are answered right."""
        chance, accuracy = known(view), validation.accuracy
        if chance is None or accuracy is None or not self._train > self.config.noisy_train * chance:
            return False
        dropouts = [float(p) for p in as_text(view.facts.get("dropout")).split(",") if p.strip()]
        if max(dropouts, default=0.0) > LITTLE_DROPOUT or "num_parameters" not in view.facts:
            return False  # a log does not show what makes its training samples harder
        is_better = validation.loss < (1.0 - self.config.noisy_gap) * self._train
        return is_better and accuracy > right_at(self._train, math.exp(chance)) + SURELY_BETTER

    def _is_stalled(self, score: float, loss: float) -> bool:
        still = self._still_since
        if still is None or abs(score - still[0]) > self.config.hold * max(abs(still[0]), 1e-12):
            self._still_since = (score, loss)
            return False
        return score < CEILING and 0 < loss < (1 - self.config.fall) * still[1]

    def _count(self, name: str, is_true: bool) -> None:
        self._counts[name] = self._counts[name] + 1 if is_true else 0

    def _describe(self, kind: str) -> str:
        v = self._values
        if kind == "equal":
            num = self._counts["equal"] + 1
            return f"validation loss exactly {self._last_loss:.6g} in {num} evaluations in a row: cached or not run?"
        if kind == "calibration":
            rise = f"from {v['best_loss']:.4g} to {v['loss']:.4g}"
            return f"validation loss rose {rise} while the metric stays at {v['score']:.4g}: over-confident"
        if kind == "apart":
            losses = f"validation loss {v['loss']:.4g} against a training loss of {v['train']:.4g}"
            return f"{losses} before samples could be memorised: is the data prepared alike?"
        if kind == "noisy":
            seen = f"validation accuracy {v['score']:.3g} with a loss of {v['loss']:.4g}"
            return f"training loss stays at {self._train:.4g} against {seen}: training labels may be wrong"
        if kind in ("train_stalled", "train_chance"):
            self._values |= {"train": self._training.loss, "train_score": self._training.score}
            at = f"training accuracy {self._training.score:.3g}"
            if kind == "train_chance":
                return f"{at} is that of a guess with a training loss of {self._training.loss:.4g}: bug in the metric?"
            return f"training loss fell to {self._training.loss:.4g} while {at} stays"
        if kind == "stalled":
            return f"validation loss fell to {v['loss']:.4g} while the metric stays at {v['score']:.4g}"
        return f"metric at chance ({v['score']:.4g}) with a good validation loss of {v['loss']:.4g}: bug in the metric?"

    def _finding(self, step: int, state: str) -> Finding:
        is_over = state == "resolved"
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO if is_over else Severity.WARNING),
            step=step,
            onset_step=self._onset if self._onset is not None else step,
            summary="validation loss and metric agree again" if is_over else self._summary,
            state=state,
            values={**self._values, self._kind: 1.0} if self._kind and not is_over else self._values,
        )
