"""All that is known about an incident when it is diagnosed: findings, curves, settings, and what was not found.

Design
------
Read-only, and made when an incident is diagnosed, never at every step. The same class serves a live job and a replayed
log; what a log does not have is None or empty, and causes give no evidence on it. All curves are those of the
incident's attempt, in order, of the steps that the daemon keeps (the last two thousand).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.diagnosis import hunts
from caboose_daemon.diagnosis.hunts import Hunted
from caboose_daemon.diagnosis.sample_history import InputRange, MemoryUse, TargetSample, UpdateRatio
from caboose_daemon.incidents.causal_links import BREAKS, IN_VALIDATION
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.rules.parts.curve import trend
from caboose_daemon.rules.parts.finding import Finding
from caboose_daemon.rules.parts.updates import Updates
from caboose_daemon.rules.parts.validation import Validation, of_events
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.columns import StepSummary
from caboose_daemon.steps.settings import number
from caboose_wire import Event, Group, Layer, Module
from caboose_wire.fields import Scalar

Floats = NDArray[np.float64]
ONSET_POINTS = 10
"""Points by which a rule may name the onset of a rise too late."""
NEAR_CHANCE = 0.03
"""Share by which a loss may differ from chance and still count as chance."""
LUCKY = 0.05
"""By how much the accuracy of a guess may exceed 1 / classes."""
FIRST_STEPS = 5
AT_ONCE = 0.5
"""Share of a rise in one step, and of it some steps later, above which it is a step."""
FEW_TARGETS = 2
FEW_SAMPLES = 5
"""Samples before the onset that show how it came to it."""


@dataclass(frozen=True)
class Case:
    """An incident and all that is known around it."""

    incident: Incident
    recent: Sequence[StepSummary]
    """The steps before and since, oldest first; of this attempt alone."""
    world: int = 1
    is_live: bool = True
    groups: Sequence[Group] = ()
    layers: Sequence[Layer] = ()
    modules: Sequence[Module] = ()
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    config: Mapping[str, Scalar] = field(default_factory=dict)
    events: Sequence[Event] = ()
    visible: frozenset[str] = frozenset()
    abstaining: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Rules that could not judge, with what was not visible to them."""
    sampled: AlignedStep | None = None
    """The last sampled step, without the ranks' arrays: the reports and `layer_values`."""
    is_on: Callable[[str], bool] = lambda rule: True
    """Whether a rule is switched on at all."""
    memory_use: Sequence[MemoryUse] = ()
    """In the sampled steps so far, oldest first."""
    input_ranges: Sequence[InputRange] = ()
    """Of the batches in the sampled steps so far, oldest first."""
    targets: Sequence[TargetSample] = ()
    """Of the loss in the sampled steps so far, oldest first."""
    update_ratios: Sequence[UpdateRatio] = ()
    """Of the sampled steps so far, oldest first."""

    # What was found

    @property
    def step(self) -> int:
        """The last step."""
        return self.recent[-1].step if self.recent else self.incident.last_step

    @property
    def onset(self) -> int:
        """The step the incident began at. Validation rules name the last good evaluation, which is before any break."""
        others = [e.first.onset_step for e in self.incident.reportable if e.rule not in IN_VALIDATION]
        return min(others) if others and self.found(*BREAKS) else self.incident.onset_step

    @cached_property
    def reportable_rules(self) -> tuple[str, ...]:
        """The rules with a reportable episode, each once, in the order they joined."""
        return tuple(dict.fromkeys(episode.rule for episode in self.incident.reportable))

    def episode(self, rule: str) -> Episode | None:
        """The last episode of this rule in the incident, of any severity."""
        return next((e for e in reversed(self.incident.episodes) if e.rule == rule), None)

    def found(self, *rules: str) -> bool:
        """Whether one of these rules has an episode in the incident."""
        return any(self.episode(rule) is not None for rule in rules)

    def came_first(self, rule: str, slack: int = ONSET_POINTS) -> bool:
        """Whether this rule's condition began before the numbers broke, or they did not: else it may be a consequence.

        `slack`: points by which the rule may name its onset too late.
        """
        own = min((e.first.onset_step for e in self.incident.episodes if e.rule == rule), default=None)
        breaks = min((e.first.onset_step for e in self.incident.reportable if e.rule in BREAKS), default=None)
        return own is not None and (breaks is None or own <= breaks + slack * self.gap)

    def finding(self, rule: str) -> Finding | None:
        """The worst finding of this rule, the last of equals."""
        found = [e.worst for e in reversed(self.incident.episodes) if e.rule == rule]
        return max(found, key=lambda finding: finding.severity.rank, default=None)

    def value(self, rule: str, key: str) -> float | None:
        """A number of this rule's worst finding; None where there is none or it is not finite."""
        finding = self.finding(rule)
        value = None if finding is None else finding.values.get(key)
        return value if value is not None and math.isfinite(value) else None

    def most(self, rule: str, key: str) -> float | None:
        """The largest number under a key of this rule's findings that are kept."""
        findings = [f for e in self.incident.episodes if e.rule == rule for f in (e.first, e.worst, e.last)]
        values = [value for f in findings if math.isfinite(value := f.values.get(key, math.nan))]
        return max(values, default=None)

    def who(self, rule: str) -> str:
        """The first rank this rule names, with its host where that is known; "a rank" where it names none."""
        finding, witness = self.finding(rule), self.incident.witness
        if finding is None or not finding.ranks:
            return "a rank"
        is_witness = witness is not None and witness.ranks[:1] == finding.ranks[:1]
        host = f" ({witness.host})" if witness is not None and is_witness and witness.host else ""
        return f"rank {finding.ranks[0]}{host}"

    @cached_property
    def hunts(self) -> tuple[Hunted, ...]:
        """What the ranks' hunts found: the first bad number."""
        return tuple(hunts.of(self.events, self.onset, self.step))

    def is_quiet(self, rule: str) -> bool:
        """Whether this rule could judge the run and found nothing, which is evidence too."""
        return not self.found(rule) and rule not in self.abstaining and self.is_on(rule)

    def sees(self, what: str) -> bool:
        """Whether the agent (or the log) shows this."""
        return what in self.visible

    # Settings

    def setting(self, name: str) -> float | None:
        """A number the user gave at attach, or the agent found, under this name."""
        return number(name, self.config, self.facts)

    def fact(self, name: str) -> str:
        """A text the agent found; empty where there is none."""
        value = self.config.get(name, self.facts.get(name))
        return value if isinstance(value, str) else ""

    @property
    def optimizer(self) -> str:
        """The optimizer's class."""
        return self.fact("optimizer") or next((group.optimizer for group in self._groups_by_size), "")

    @property
    def _groups_by_size(self) -> list[Group]:
        """The parameter groups, the largest first."""
        return sorted(self.groups, key=lambda group: -group.num_parameters)

    def hyper(self, name: str) -> float | None:
        """A hyper-parameter of the largest parameter group that has it, such as weight_decay or momentum."""
        for group in self._groups_by_size:
            value = group.settings.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        return None

    @property
    def batch(self) -> float | None:
        """Samples per step over all ranks; None where the batch size is not known."""
        batch = self.samples_per_call
        return batch * self.world if batch else None

    @property
    def samples_per_call(self) -> float | None:
        """Samples that the model gets at once: the loader's batch size, else the rows of its input when sampled."""
        batch = self.setting("batch_size")
        if batch is not None or self.sampled is None:
            return batch
        seen = [report.batch for report in self.sampled.reports.values() if report.batch is not None]
        return max((float(one.shape[0]) for one in seen if one.shape and one.index is None), default=None)

    @property
    def dropout(self) -> float | None:
        """The largest dropout of the model; None where the model's modules are not known, 0 where it has none."""
        given = number("dropout", self.config)
        if given is not None or "num_parameters" not in self.facts:
            return given
        return max((float(p) for p in self.fact("dropout").split(",") if p.strip()), default=0.0)

    @property
    def samples_per_parameter(self) -> float | None:
        """Samples in the training data for each parameter that is trained."""
        size, trained = self.setting("dataset_length"), self.setting("num_trainable")
        return size / trained if size and trained else None

    @property
    def epochs_seen(self) -> float | None:
        """How often the data has been seen, where batch and dataset size are known."""
        return self.epochs_at(self.step)

    def epochs_at(self, step: int) -> float | None:
        """How often the data had been seen at a step."""
        batch, size = self.samples_per_call, self.setting("dataset_length") or self.setting("dataset_size")
        return step * batch * self.world / size if batch and size else None

    # Curves

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Step numbers of the curves."""
        return np.array([s.step for s in self.recent], dtype=np.int64)

    def curve(self, name: str) -> Floats:
        """loss, grad_norm, lr, step_seconds or data_seconds, as long as `steps`; NaN where not reported (or NaN)."""
        known = self._curves.get(name)
        if known is None:
            values = [getattr(s, name) for s in self.recent]
            known = self._curves[name] = np.array([math.nan if v is None else v for v in values], dtype=np.float64)
        return known

    @cached_property
    def _curves(self) -> dict[str, Floats]:
        return {}

    def accuracies(self) -> list[float]:
        """The accuracy of every evaluation that gave one, oldest first."""
        found_ones = (found.accuracy for found in of_events(self.events))
        return [value for value in found_ones if value is not None]

    def memory(self, kind: Literal["host", "device"]) -> list[tuple[int, float]]:
        """Step and bytes of the rank that used most, in the sampled steps after the first, where it was reported."""
        used = ((use.step, use.host if kind == "host" else use.device) for use in self.memory_use if use.step > 1)
        return [(step, float(num)) for step, num in used if num is not None]

    def memory_share(self, kind: Literal["host", "device"]) -> float | None:
        """Share of the memory that is used; None where either is not known. Ranks on one host share its memory."""
        used, total = self.memory(kind), self.setting(f"{kind}_memory_bytes")
        ranks = self.setting("ranks_per_host") or 1.0 if kind == "host" else 1.0
        return min(1.0, used[-1][1] * ranks / total) if used and total else None

    def before(self, name: str, num: int = 50) -> Floats:
        """The finite values of a curve on up to `num` reported steps before the onset."""
        values = self.curve(name)[self.steps < self.onset][-num:]
        return values[np.isfinite(values)]

    def since(self, name: str) -> Floats:
        """The finite values of a curve from the onset on."""
        values = self.curve(name)[self.steps >= self.onset]
        return values[np.isfinite(values)]

    @property
    def usual_step_seconds(self) -> float | None:
        """The median time of a step in seconds, above 0; None where it was not seen."""
        seconds = self.curve("step_seconds")
        seconds = seconds[np.isfinite(seconds) & (seconds > 0.0)]
        return float(np.median(seconds)) if len(seconds) else None

    @property
    def gap(self) -> int:
        """The usual distance of two reported steps: 1 but for logs that have only every so many."""
        gaps = np.diff(self.steps)
        return max(1, int(np.median(gaps))) if len(gaps) else 1

    @property
    def lr(self) -> float | None:
        """The learning rate just before the onset, or the first one known after it."""
        before, since = self.before("lr"), self.since("lr")
        if len(before):
            return float(before[-1])
        return float(since[0]) if len(since) else self.hyper("lr")

    @property
    def lr_now(self) -> float | None:
        """The last learning rate."""
        values = self.curve("lr")
        values = values[np.isfinite(values)]
        return float(values[-1]) if len(values) else self.hyper("lr")

    @property
    def lr_peak(self) -> float | None:
        """The highest learning rate in the curve or the settings."""
        values = [float(v) for v in self.curve("lr") if math.isfinite(v)]
        values += [v for v in (self.hyper("initial_lr"), self.hyper("lr")) if v is not None]
        return max(values, default=None)

    @property
    def recent_trend(self) -> tuple[float, float] | None:
        """How the loss changed over the last half of the curve, with its error, as shares of its level."""
        values = self.curve("loss")
        values = values[np.isfinite(values)]
        values = values[len(values) // 2 :]
        if len(values) < 48:
            return None
        means = [float(part.mean()) for part in np.array_split(values, 24)]
        line = trend(means)
        return (line.relative, line.relative_error) if line.level else None

    @cached_property
    def validations(self) -> tuple[tuple[int, Validation], ...]:
        """The evaluations with a finite loss, with their steps, oldest first, of the events that are kept."""
        pairs = ((event.step, found) for event in self.events for found in of_events((event,)))
        return tuple((step, found) for step, found in pairs if math.isfinite(found.loss))

    def train_at(self, step: int) -> float | None:
        """The training loss at a step: the median of the last twenty reports up to it."""
        values = self.curve("loss")[self.steps <= step][-20:]
        values = values[np.isfinite(values)]
        return float(np.median(values)) if len(values) >= 5 else None

    @property
    def update_ratio(self) -> float | None:
        """The update of the typical weight matrix as a share of the weights, in the last sampled step."""
        return None if self.sampled is None else Updates().of(self.sampled, self.layers)

    @property
    def typical_update(self) -> float | None:
        """The median of that ratio over the samples so far; the last one where no others are kept."""
        known = sorted(one.value for one in self.update_ratios if math.isfinite(one.value))
        return known[len(known) // 2] if known else self.update_ratio

    @property
    def update_before(self) -> UpdateRatio | None:
        """The largest such update that was sampled up to the onset, of the last few samples; later ones show the harm.

        None where none was sampled by then.
        """
        known = [one for one in self.update_ratios if one.step <= self.onset and math.isfinite(one.value)]
        later = [
            one for one in known if one.step > FIRST_STEPS
        ]  # an optimizer's first steps are larger than its others
        return max((later or known)[-FEW_SAMPLES:], key=lambda one: one.value, default=None)

    @property
    def chance(self) -> float | None:
        """The loss of a guess among all classes, where their number is known."""
        classes = self.setting("num_classes")
        return None if classes is None else math.log(classes)

    @property
    def guess(self) -> float | None:
        """The loss of the best answer without looking at the inputs: by the targets that were seen, else chance."""
        blind = [one.blind for one in self.targets if one.blind is not None]
        return sum(blind) / len(blind) if len(blind) >= FEW_TARGETS else self.chance

    @property
    def unexplained(self) -> float | None:
        """The loss as a share of that without a look at the inputs, in the later half of the samples."""
        pairs = [(one.loss, one.blind) for one in self.targets if one.loss is not None and one.blind]
        last = pairs[-len(pairs) // 2 :]
        return sum(loss for loss, _ in last) / sum(blind for _, blind in last) if len(pairs) >= FEW_TARGETS else None

    @property
    def commonest_share(self) -> float | None:
        """Share of the commonest class among the targets; None where they are no classes, or too few were seen."""
        shares = [one.commonest for one in self.targets if one.commonest is not None]
        return sum(shares) / len(shares) if len(shares) >= FEW_TARGETS else None

    @property
    def is_guessing(self) -> bool | None:
        """Whether no evaluation gave a better loss than a guess; None where there was none, or chance is not known.

        A loss can be that bad though most answers are right, by being too sure of the others: then it is no guess.
        """
        losses = [found.loss for _, found in self.validations]
        best = self.value("overfitting", "best")  # in a long run it is older than the events that are kept
        losses += [] if best is None else [best]
        guess, chance = self.guess, self.chance
        if guess is None or not losses:
            return None
        accuracy = float(np.median(self.accuracies() or [0.0]))
        is_as_right = chance is None or accuracy < math.exp(-chance) + LUCKY
        return min(losses) > (1.0 - NEAR_CHANCE) * guess and is_as_right

    @property
    def level(self) -> float | None:
        """The recent loss: the median of the last tenth of the curve, of at least 20 points."""
        values = self.curve("loss")
        values = values[np.isfinite(values)]
        return float(np.median(values[-max(20, len(values) // 10) :])) if len(values) else None

    @cached_property
    def jump(self) -> tuple[float, float, float] | None:
        """How the loss rose at the onset: level before, level after, and the largest share of it in a single step.

        None where it did not rise by a tenth and by more than its scatter.
        """
        values, steps = self.curve("loss"), self.steps
        values, steps = values[np.isfinite(values)], steps[np.isfinite(values)]
        at = int(np.searchsorted(steps, self.onset))
        calm, later = values[max(0, at - 60) : max(0, at - ONSET_POINTS)], values[at : at + 2 * ONSET_POINTS]
        if len(calm) < ONSET_POINTS or len(later) < 3:
            return None
        before, after = float(np.median(calm)), float(np.median(later))
        scatter = float(np.median(np.abs(calm - before))) * 1.4826
        if after - before < max(0.1 * abs(before), scatter):
            return None
        around = values[at - ONSET_POINTS : at + ONSET_POINTS // 2]
        return before, after, min(1.0, float(np.diff(around).max()) / (after - before))

    @cached_property
    def regained(self) -> float | None:
        """Share of its jump by which the loss has fallen again; None without a jump, or too soon after."""
        later = self.since("loss")
        if self.jump is None or len(later) < ONSET_POINTS // 2:
            return None
        top = float(later[: ONSET_POINTS // 2].max()) - self.jump[0]
        return 1.0 - (float(np.median(later[-3:])) - self.jump[0]) / top

    @cached_property
    def sustained(self) -> float | None:
        """How much of the first height of a jump was left a few steps later; None without a jump, or too soon.

        Other data raises every step's loss. One bad batch raises its own, and what it did to the weights.
        """
        later = self.since("loss")
        if self.jump is None or len(later) < ONSET_POINTS:
            return None
        before = self.jump[0]
        top = float(later[:FIRST_STEPS].max()) - before
        return (float(np.median(later[FIRST_STEPS:ONSET_POINTS])) - before) / top if top > 0 else None

    @property
    def is_step_change(self) -> bool:
        """Whether the loss rose in one step and stayed there for the next few, as on other data."""
        return self.jump is not None and self.jump[2] > AT_ONCE and (self.sustained or 0.0) > AT_ONCE

    @property
    def has_validation(self) -> bool:
        """Whether a validation was ever reported."""
        return any(event.kind == "validation" for event in self.events)

    @property
    def began_early(self) -> bool:
        """Whether it began in the first hundred steps of the run."""
        return self.onset <= 100 and "resume" not in self.incident.regimes
