"""config_advice: settings that are known to cause trouble, reported once at the start of an attempt.

Design
------
What the agent's Hello contains (optimizers, their settings, precision, scaler, attention) is judged at the first step.
What shows only later (whether the rate was warmed up, whether gradients are clipped, whether updates are rounded away)
is judged again after `look_steps`. Values that hardly any run learns with are in `parts/risky_model`. All advice is one
finding with one onset. It is reported when it changes, not at every step, and it is never resolved, because settings do
not change in a run. It never pages: many runs do well against the advice. Unknown settings are not judged: a resumed
run has had its warm-up.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from caboose_daemon.rules.parts import risky_model
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.rules.parts.unexplained import RANKS, Unexplained
from caboose_daemon.rules.parts.updates import Updates
from caboose_daemon.rules.parts.validation import of_events
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import MOVING_OBJECTIVE, JobView
from caboose_wire import Group, Layer
from caboose_wire.fields import Scalar

L2_OPTIMIZERS = frozenset({"Adam", "NAdam", "RAdam", "Adamax"})
"""Their `weight_decay` is added to the gradient, and so divided by its size, unless it is decoupled."""
ADAM_FAMILY = frozenset(
    {"adam", "adamw", "nadam", "nadamw", "radam", "adamax", "fusedadam", "cpuadam", "deepspeedcpuadam", "adamw8bit"}
    | {"adam8bit", "pagedadam", "pagedadamw", "pagedadam8bit", "pagedadamw8bit", "adamwschedulefree", "lamb", "adan"}
)
"""Whose usual rates are known. Others that have Adam in their names mix methods, with rates of their own (Muon)."""
OF_THE_LOOP = ("keeps_gradients", "never_steps", "loss_mistake")
"""Facts that the agent finds in the first steps, and not at attach."""
LAST_LOSSES = 50
"""Training losses whose median must fit a second softmax, as the validation loss does."""
FITS = 3
"""Evaluations in a row that must."""
LAST_SAMPLE = 12
"""Sampled steps up to which inputs and targets are looked at."""
MIN_CLASSES = 3
WARM_SHARE = 0.9
"""A run whose first rate is above this share of its highest rate was not warmed up."""


@dataclass(frozen=True)
class ConfigAdviceConfig(RuleConfig):
    """Thresholds of config_advice."""

    lowest_lr: float = 1e-7
    """Learning rate below which an optimizer of the Adam family hardly moves the weights."""
    highest_lr: float = 1e-2
    """Learning rate above which an optimizer of the Adam family seldom converges."""
    look_steps: int = 200
    """Steps after which warm-up, clipping and the highest rate so far are judged."""


class ConfigAdvice(LastingRule[ConfigAdviceConfig]):
    """Advice on the run's settings."""

    name = "config_advice"
    config_class = ConfigAdviceConfig

    def __init__(self, config: ConfigAdviceConfig) -> None:
        super().__init__(config)
        self._first_step: int | None = None
        self._first_lr = 0.0
        self._highest_lr = 0.0
        self._num_steps = 0
        self._is_from_start = True
        self._was_clipped = False
        self._updates = Updates()
        self._ratios: list[float] = []
        self._lowest_loss = math.inf
        self._is_done = False
        self._is_twice = False
        self._num_fits = 0
        self._losses: deque[float] = deque(maxlen=LAST_LOSSES)
        self._loop_facts: list[Scalar] = [None] * len(OF_THE_LOOP)
        self._shares: list[float] = []
        """Of the commonest class among the targets, in the sampled steps."""
        self._largest_inputs: list[float] = []
        """The largest magnitude of the inputs, in the sampled steps."""
        self._num_targets = 0.0
        """Samples of the batches that these are of."""
        self._best_accuracy: float | None = None
        self._layers: Sequence[Layer] = ()
        self._num_sampled = 0
        self._unexplained = Unexplained()
        self._num_inputs: float | None = None
        """Samples that the model was called with, the most of any sampled step; None where no loop shows its inputs."""

    def observe(self, view: JobView) -> Finding | None:
        """The advice, at the first step and when there is more."""
        step = view.step
        if step is None:
            return None
        is_twice = self._is_softmax_twice(view, step)
        if self._is_done:
            return self._advise_late(view, step, is_twice=is_twice)
        self._num_steps += 1
        self._layers = view.layers
        self._follow(view, step)
        self._follow_samples(view, step)
        of_the_loop = [view.facts.get(name) for name in OF_THE_LOOP]
        is_new, self._loop_facts = of_the_loop != self._loop_facts, of_the_loop
        if is_new or (self._num_steps == 1 and not self.is_open):
            return self._advise(step.step, self._at_attach(view))
        if self._num_steps < self.config.look_steps:
            return None
        self._is_done = True
        advice = self._at_attach(view)
        known = {name for name, _, _ in advice}
        advice += [one for one in self._after_look_steps(view) if one[0] not in known]
        if self._is_twice and all(name != "softmax_twice" for name, _, _ in advice):
            advice += self._softmax_too(view)
        return self._advise(step.step, advice)

    def _is_softmax_twice(self, view: JobView, step: AlignedStep) -> bool:
        """Whether evaluations and training losses have shown what only a second softmax does; once.

        Noisy labels give one of the two by chance: a model that is unsure has a high loss though it is right.
        """
        classes = view.setting("num_classes")
        if self._is_twice or classes is None or classes < MIN_CLASSES or (loss := step.finite_loss) is None:
            return False
        if view.facts.get("loss_kind"):
            return False  # the loss's graph was read, and shows how many there are
        for found in of_events(view.events) if view.events else ():
            both = (found.loss, median(self._losses or [loss]))
            fits = found.accuracy is not None and all(
                risky_model.fits_second_softmax(one, found.accuracy, classes) for one in both
            )
            self._num_fits = self._num_fits + 1 if fits else 0
        self._losses.append(loss)
        self._is_twice = self._num_fits >= FITS
        return self._is_twice

    def _advise_late(self, view: JobView, step: AlignedStep, *, is_twice: bool) -> Finding | None:
        """What evaluations show at any time, and samples until there were enough."""
        if is_twice:
            return self._advise(step.step, [*self._told_before("softmax_twice"), *self._softmax_too(view)])
        if self._num_sampled >= LAST_SAMPLE:
            return None
        self._follow_samples(view, step)
        if not step.is_sampled:
            return None
        known = {} if self._last is None else self._last.values
        found = [(name, text) for name, text in self._in_samples(view).items() if text and name not in known]
        new = [(name, Severity.WARNING, text) for name, text in found]
        return self._advise(step.step, [*self._told_before(), *new]) if new else None

    def _told_before(self, but: str = "") -> list[tuple[str, Severity, str]]:
        """The advice that was given, without its words."""
        known = self._last
        return [] if known is None else [(name, known.severity, "") for name in known.values if name != but]

    def _softmax_too(self, view: JobView) -> list[tuple[str, Severity, str]]:
        """The second softmax."""
        floor = risky_model.softmax_floor(view.setting("num_classes") or MIN_CLASSES)
        text = f"the loss is that of a softmax applied twice, which is at least {floor:.3g}: cross entropy takes logits"
        return [("softmax_twice", Severity.WARNING, text)]

    def resume(self, finding: Finding) -> None:
        """It was reported; how the run started is no longer visible, what shows later still is."""
        super().resume(finding)
        self._first_step, self._is_from_start = finding.onset_step, False

    def _follow(self, view: JobView, step: AlignedStep) -> None:
        lr = max(step.lr, default=0.0)
        if self._first_step is None:
            self._first_step, self._first_lr = step.step, lr
            self._is_from_start = "resume" not in view.regime.active and step.step <= 1
        self._highest_lr = max(self._highest_lr, lr)
        if step.mean_loss is not None and step.mean_loss < self._lowest_loss:
            self._lowest_loss = step.mean_loss
        ratio = self._updates.typical(view)
        if ratio is not None:
            self._ratios.append(ratio)
        if not self._was_clipped and step.reports:  # all ranks clip alike
            clipping = next(iter(step.reports.values())).clipping
            self._was_clipped = clipping is not None and clipping.max_norm is not None

    def _follow_samples(self, view: JobView, step: AlignedStep) -> None:
        self._unexplained.observe(step)
        if step.is_sampled:
            self._num_sampled += 1
            self._num_inputs = max((*_num_inputs(step), self._num_inputs or 0.0)) or None
            batches = [report.batch for report in islice(step.reports.values(), RANKS) if report.batch is not None]
            lows = [-b.lowest for b in batches if b.lowest is not None and math.isfinite(b.lowest)]
            highs = [b.highest for b in batches if b.highest is not None and math.isfinite(b.highest)]
            self._largest_inputs += [max(*lows, *highs)] if lows and highs else []
            self._shares += [b.commonest_share for b in batches if b.commonest_share is not None]
            self._num_targets += sum(b.shape[0] for b in batches if b.commonest_share is not None and b.shape)
        for found in of_events(view.events) if view.events else ():
            self._best_accuracy = max((a for a in (self._best_accuracy, found.accuracy) if a is not None), default=None)

    def _in_samples(self, view: JobView) -> dict[str, str | None]:
        """What the sampled inputs and targets show."""
        return {
            "norm_of_few": risky_model.norm_of_few(view.facts, view.config, self._num_inputs),
            "large_inputs": risky_model.large_inputs(view.layers, view.modules, self._largest_inputs),
            "one_class": risky_model.one_class(
                self._shares, self._num_targets, self._best_accuracy, self._unexplained.share
            ),
        }

    def _advise(self, step: int, advice: list[tuple[str, Severity, str]]) -> Finding | None:
        known = self._last.values if self._last is not None else {}
        if all(name in known for name, _, _ in advice):
            return None
        worst = max((severity for _, severity, _ in advice), key=lambda severity: severity.rank)
        return self._found(
            worst,
            step,
            "; ".join(text for _, _, text in advice if text),
            onset=self._first_step,
            layers=self._frozen() if any(name == "frozen_at_random" for name, _, _ in advice) else (),
            values={name: 1.0 for name, _, _ in advice},
        )

    def _frozen(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self._layers if not layer.trainable)

    def _at_attach(self, view: JobView) -> list[tuple[str, Severity, str]]:
        advice = []
        for group in view.groups:
            decay = _number(group, "weight_decay")
            if group.optimizer in L2_OPTIMIZERS and decay > 0 and not group.settings.get("decoupled_weight_decay"):
                text = f"weight_decay {decay:g} in {group.optimizer} is L2, which Adam scales away: use AdamW"
                advice.append(("adam_l2", Severity.INFO, text))
                break
        adam_rates = [_rate(group) for group in view.groups if _is_adam(group)]
        if adam_rates and max(adam_rates) > self.config.highest_lr:
            optimizer = next(group.optimizer for group in view.groups if _rate(group) == max(adam_rates))
            text = f"learning rate {max(adam_rates):g} is high for {optimizer}"
            advice.append(("high_lr", self._about_rates(view), f"{text} (usual: up to {self.config.highest_lr:g})"))
        high_eps = risky_model.eps([group for group in view.groups if _is_adam(group)])
        if high_eps is not None:
            advice.append(("high_eps", Severity.WARNING, high_eps))
        if view.facts.get("precision") == "float16" and view.facts.get("scaler") is False:
            text = "float16 parameters without a GradScaler: small gradients become zero"
            advice.append(("fp16_without_scaler", Severity.WARNING, text))
        extreme = {
            "high_dropout": risky_model.dropout(view.facts),
            "high_momentum": risky_model.momentum(view.groups),
            "initial_weights": None if "resume" in view.regime.active else risky_model.initial_weights(view.facts),
            "high_decay": risky_model.decay(view.groups),
            "norm_of_few": risky_model.norm_of_few(view.facts, view.config),
            "kept_gradients": risky_model.kept_gradients(view.facts),
            "no_steps": risky_model.no_steps(view.facts),
            "frozen_at_random": risky_model.frozen_at_random(view.facts),
            "linear": risky_model.linear_pairs(view.facts),
        }
        loss = None if view.step is None else view.step.mean_loss
        mistake = risky_model.loss_mistake(view.facts, loss)
        extreme |= {} if mistake is None else dict([mistake])
        return advice + [(name, Severity.WARNING, found) for name, found in extreme.items() if found]

    def _about_rates(self, view: JobView) -> Severity:
        """Usual rates are those of supervised training: with small models and a moving objective, others do well too.

        A run that is resumed has shown what it does at its rate. One that came with the resume is for `lr_schedule`.
        """
        is_known = self._first_step is not None and self._first_step > 1
        return Severity.INFO if is_known or MOVING_OBJECTIVE in view.visible else Severity.WARNING

    def _after_look_steps(self, view: JobView) -> list[tuple[str, Severity, str]]:
        advice = []
        is_adam = any(_is_adam(group) for group in view.groups)
        is_transformer = view.facts.get("attention") is True
        if is_adam and self._is_from_start and 0 < self._highest_lr < self.config.lowest_lr:
            text = f"learning rate at most {self._highest_lr:g} in {self._num_steps:,} steps"
            advice.append(("low_lr", self._about_rates(view), text))
        if is_transformer and "clipping" in view.visible and not self._was_clipped:
            text = "transformer without gradient clipping (usual: clip_grad_norm_(..., 1.0))"
            advice.append(("no_clipping", Severity.INFO, text))
        is_flat = self._highest_lr > 0 and self._first_lr >= WARM_SHARE * self._highest_lr
        if is_transformer and is_adam and self._is_from_start and is_flat:
            text = f"no warm-up: learning rate {self._first_lr:g} from the first step"
            advice.append(("no_warmup", Severity.INFO, text))
        seen = {
            "lost_updates": risky_model.rounding(view.facts, self._ratios),
            "softmax_twice": risky_model.softmax(view.modules, view.setting("num_classes"), self._lowest_loss),
            **self._in_samples(view),
        }
        return advice + [(name, Severity.WARNING, found) for name, found in seen.items() if found]


def _num_inputs(step: AlignedStep) -> Iterator[float]:
    """Samples that each rank's model was called with, where no loader is watched."""
    for report in islice(step.reports.values(), RANKS):
        if report.batch is not None and report.batch.index is None and report.batch.shape:
            yield float(report.batch.shape[0])


def _is_adam(group: Group) -> bool:
    return group.optimizer.lower() in ADAM_FAMILY


def _rate(group: Group) -> float:
    return max(_number(group, "lr"), _number(group, "initial_lr"))


def _number(group: Group, name: str) -> float:
    value = group.settings.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
