"""The questions, their symptoms, when they are skipped, and the meaning of an answer.

Design
------
An answer becomes something the causes already weigh: a setting of the run, a sign (a finding of the rule that would
have detected it), or a number or place missing in the symptom's finding (`amend`). So a guided diagnosis has no causes
or weights of its own. A question is skipped if the run has the answer: the setting is known, or the rule could judge
and found it, or found nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.rules.parts.finding import Finding

Answer = float | str | bool
Kind = Literal["number", "share", "yes", "word"]
NAN, SPIKE, DIVERGES = "nan", "spike", "diverges"
STILL = ("stuck", "plateau", "underfits", "creeps", "vanishes")
BREAKING = (NAN, SPIKE, DIVERGES, "explodes")
LEVEL = "level"
"""The level of the loss: asked like a setting, but not one."""
INPUTS = "largest_input"
"""The largest absolute value of an input: likewise."""
SCHEDULES = ("none", "cosine", "linear", "step", "exponential", "onecycle", "cyclic", "plateau", "other")
ASKED = frozenset(
    {"bad_inputs", "was_looked_into", "loss_is_infinite", "amplitude", "correlation"}
    | {"best", "validation_loss", "train_at_best", "train"}
)
"""Numbers that answers may set; all others come from the rule, which is more reliable."""
LOSSES = (*BREAKING, *STILL, "swings", "overfits", "metric")


@dataclass(frozen=True)
class Question:
    """A question; its answer becomes a `setting` or a finding of `rule`."""

    text: str
    kind: Kind
    symptoms: tuple[str, ...]
    setting: str = ""
    rule: str = ""
    summary: str = ""
    """The finding's summary; {} is the answer."""
    values: Callable[[Answer], Mapping[str, float]] = field(default=lambda answer: {})
    """The finding's numbers."""
    phase: str = ""
    amend: Callable[[Finding, Answer], Finding] | None = None
    """Changes the symptom's finding instead of adding one."""
    name: str = ""
    """Key among the answers; default: setting or rule."""
    words: tuple[str, ...] = ()
    """Accepted answers of a word question; empty for any."""

    @property
    def key(self) -> str:
        return self.name or self.setting or self.rule

    def is_known(self, case: Case) -> bool:
        """Whether the run has the answer."""
        if self.amend is not None:
            finding = case.finding(self.rule)
            return finding is None or bool(finding.phase) or bool(finding.values.keys() - ASKED)
        if self.rule:
            return case.found(self.rule) or case.is_quiet(self.rule)
        if self.setting == "lr":
            return case.lr is not None
        if self.setting == "optimizer":
            return bool(case.optimizer)
        if self.setting == LEVEL:
            return case.level is not None
        if self.setting == INPUTS:
            return bool(case.input_ranges)
        if self.setting == "dropout":
            return case.dropout is not None
        return case.setting(self.setting) is not None or bool(case.fact(self.setting)) or _is_hyper(case, self.setting)

    def parse(self, text: str) -> Answer:
        """The answer; ValueError with the expected form if invalid."""
        text = text.strip()
        if self.kind == "yes":
            if text.lower() in ("y", "yes", "n", "no"):
                return text.lower().startswith("y")
            raise ValueError("y or n, or leave it empty if you do not know")
        if self.kind == "word":
            if self.words and text not in self.words:
                raise ValueError(f"one of {', '.join(self.words)}, or leave it empty if you do not know")
            return text
        try:
            value = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            raise ValueError("a number, or leave it empty if you do not know") from None
        if not value >= 0 or value == float("inf") or (self.kind == "share" and value > 1):
            raise ValueError("0 to 1, or a percentage" if self.kind == "share" else "a number of 0 or more")
        return value


def _is_hyper(case: Case, name: str) -> bool:
    return case.hyper(name) is not None


def _number(name: str) -> Callable[[Finding, Answer], Finding]:
    return lambda finding, answer: _valued(finding, "", **{name: float(answer)})


def _valued(finding: Finding, phase: str = "", **values: float) -> Finding:
    return msgspec.structs.replace(finding, phase=phase or finding.phase, values={**finding.values, **values})


def _of_input(finding: Finding, answer: Answer) -> Finding:
    return _valued(finding, phase="input") if answer else _valued(finding, bad_inputs=0.0)


def _of_loss(finding: Finding, answer: Answer) -> Finding:
    return _valued(finding, phase="forward", was_looked_into=1.0) if answer and not finding.phase else finding


def _of_infinity(finding: Finding, answer: Answer) -> Finding:
    return _valued(finding, loss_is_infinite=1.0) if answer else finding


def _of_recovery(finding: Finding, answer: Answer) -> Finding:
    return msgspec.structs.replace(finding, step=finding.onset_step + int(float(answer)))


def _of_swing(finding: Finding, answer: Answer) -> Finding:
    return _valued(finding, amplitude=float(answer), correlation=0.9)


def _of_turn(finding: Finding, answer: Answer) -> Finding:
    return _valued(finding, correlation=-0.9) if answer and "amplitude" in finding.values else finding


QUESTIONS: tuple[Question, ...] = (
    Question(
        "Does the batch of that step contain NaN or infinity?",
        "yes",
        (NAN,),
        rule="non_finite",
        amend=_of_input,
        name="bad_input",
    ),
    Question(
        "Are the model's outputs finite, and only the loss is not?",
        "yes",
        (NAN,),
        rule="non_finite",
        amend=_of_loss,
        name="loss_alone",
    ),
    Question(
        "Was the loss infinite at first, rather than NaN?",
        "yes",
        (NAN,),
        rule="non_finite",
        amend=_of_infinity,
        name="infinite",
    ),
    Question(
        "After how many steps was the loss back at its level? (leave empty if it is not)",
        "number",
        (SPIKE,),
        rule="loss_spike",
        amend=_of_recovery,
        name="num_steps_up",
    ),
    Question(
        "Does the batch of that step contain unusual values?",
        "yes",
        (SPIKE, DIVERGES),
        rule="bad_batch",
        summary="its batch contains unusual values",
        phase="input",
    ),
    Question(
        "Did the gradient norm grow before it?",
        "yes",
        BREAKING,
        rule="gradient_explosion",
        summary="the gradient norm grew before it",
    ),
    Question(
        "Which precision is used for training?",
        "word",
        (NAN, DIVERGES),
        setting="precision",
        words=("float32", "bfloat16", "float16"),
    ),
    Question(
        "If a GradScaler is used: what is its scale now?",
        "number",
        (NAN,),
        rule="loss_scale_collapse",
        summary="the scaler's scale is {}",
        values=lambda answer: {"scale": float(answer)},
    ),
    Question(
        "By what share of its level does the loss swing?",
        "share",
        ("swings",),
        rule="oscillation",
        amend=_of_swing,
        name="amplitude",
    ),
    Question(
        "Does it alternate from step to step, rather than in slow waves?",
        "yes",
        ("swings",),
        rule="oscillation",
        amend=_of_turn,
        name="alternates",
    ),
    Question("At which value does the loss stay?", "number", STILL, setting=LEVEL),
    Question(
        "What was the best validation loss?",
        "number",
        ("overfits",),
        rule="overfitting",
        amend=_number("best"),
        name="best_validation",
    ),
    Question(
        "What is the validation loss now?",
        "number",
        ("overfits",),
        rule="overfitting",
        amend=_number("validation_loss"),
        name="validation",
    ),
    Question(
        "What was the training loss when validation was best?",
        "number",
        ("overfits",),
        rule="overfitting",
        amend=_number("train_at_best"),
        name="train_at_best",
    ),
    Question(
        "What is the training loss now?",
        "number",
        ("overfits",),
        rule="overfitting",
        amend=_number("train"),
        name="train",
    ),
    Question("Which optimizer?", "word", LOSSES, setting="optimizer"),
    Question("Which learning rate at that time?", "number", LOSSES, setting="lr"),
    Question(
        "Was the model in eval mode while it trained (model.training is False)?",
        "yes",
        STILL,
        rule="eval_mode",
        summary="the model was in eval mode",
    ),
    Question(
        "How many parameters have no gradient after backward() (p.grad is None)?",
        "number",
        STILL,
        rule="frozen_parameters",
        summary="{} parameters get no gradient",
        values=lambda answer: {"without_gradient": float(answer)},
    ),
    Question(
        "What share of the ReLU units is dead (zero for every sample)?",
        "share",
        STILL,
        rule="dead_units",
        summary="{} of the units are dead",
        values=lambda answer: {"share": float(answer)},
    ),
    Question(
        "How many classes are there? (leave empty if it is not a classifier)",
        "number",
        (*STILL, "metric"),
        setting="num_classes",
    ),
    Question("Which weight decay?", "number", (*STILL, "overfits"), setting="weight_decay"),
    Question(
        "How many samples does a rank process per step?",
        "number",
        ("overfits", "swings", "underfits"),
        setting="batch_size",
    ),
    Question("How many training samples are there?", "number", ("overfits", "underfits"), setting="dataset_length"),
    Question("How many parameters are trained?", "number", ("overfits", "underfits"), setting="num_trainable"),
    Question(
        "What share of a step is spent waiting for data?",
        "share",
        ("slow", "hangs"),
        rule="data_starved",
        summary="{} of a step is spent waiting for data",
        values=lambda answer: {"share": float(answer)},
    ),
    Question("How many workers does the DataLoader have?", "number", ("slow",), setting="num_workers"),
    Question(
        "Is one rank slower than the others?",
        "yes",
        ("slow",),
        rule="straggler",
        summary="one rank is slower than the others",
        values=lambda answer: {"num_slow": 1.0},
    ),
    Question(
        "How many ranks disappeared without an error?",
        "number",
        ("hangs",),
        rule="rank_silent",
        summary="{} ranks disappeared",
        values=lambda answer: {"silent_ranks": float(answer)},
    ),
    Question(
        f"Which learning rate schedule ({', '.join(SCHEDULES)})?", "word", LOSSES, setting="scheduler", words=SCHEDULES
    ),
    Question("What was the highest learning rate so far?", "number", STILL, setting="initial_lr"),
    Question("How many steps are planned in total?", "number", STILL, setting="total_steps"),
    Question(
        "What share is dropped by the strongest dropout? (0 for none)", "share", (*STILL, "overfits"), setting="dropout"
    ),
    Question(
        "Is the loss function your own, rather than one of torch's?",
        "yes",
        (*BREAKING, *STILL, "metric"),
        setting="custom_loss",
    ),
    Question(
        "What is the largest absolute value in a batch of inputs? (leave empty for text)",
        "number",
        (*BREAKING, *STILL, "swings"),
        setting=INPUTS,
    ),
    Question(
        "Are validation inputs prepared differently from training inputs?",
        "yes",
        ("overfits", "metric"),
        rule="metric_divergence",
        summary="validation inputs are prepared differently",
        values=lambda answer: {"apart": 1.0},
        name="prepared_differently",
    ),
)
