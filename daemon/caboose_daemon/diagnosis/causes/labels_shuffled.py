"""Inputs and labels do not belong together: training works, but there is nothing to learn."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import model_facts
from caboose_daemon.diagnosis.case import LUCKY, NEAR_CHANCE, Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.diagnosis.causes.memorising import LEARNED_FROM_CHANCE, was_learned_while_new
from caboose_daemon.incidents.causal_links import BREAKS
from caboose_daemon.incidents.diagnosis_record import Advice

MOVES, STILL = 1e-4, 1e-5
"""Update-to-weight ratios above which training works, and below which it does not."""
BLOCKERS = ("frozen_parameters", "gradient_vanishing", "dead_units", "saturation", "activation_collapse", "eval_mode")
"""Rules about faults that keep a model from learning any data."""


class LabelsShuffled(Cause):
    """Labels that do not depend on their inputs."""

    id = "labels_shuffled"
    title = "labels that do not match the inputs"
    explains = frozenset({"not_learning", "underfitting", "plateau", "metric_divergence", "overfitting"}) | {
        "generalisation_gap"
    }
    """Random labels can still be memorised, where the dataset is small enough."""

    def weigh(self, case: Case) -> Iterator[Evidence]:
        level, chance = case.level, case.chance
        if case.value("metric_divergence", "noisy") and not case.found(*BREAKS):
            yield supports(DECISIVE, "training is answered far worse than validation: its labels are wrong, or noise")
            if not case.dropout:
                yield supports(FAIR, "nothing makes training samples harder: there is no dropout")
            return
        if level is not None and chance is not None:
            if abs(level / chance - 1.0) < NEAR_CHANCE:
                yield supports(FAIR, f"loss {level:.4g} is at chance ({chance:.4g})")
            elif case.found("overfitting") and case.is_guessing and not was_learned_while_new(case, chance):
                yield supports(
                    STRONG,
                    f"training loss {level:.4g} comes from memorising: validation was never better than chance"
                    f" ({chance:.4g})",
                )
            elif level < LEARNED_FROM_CHANCE * chance:
                weight = DECISIVE if was_learned_while_new(case, chance) else STRONG
                yield opposes(weight, f"loss {level:.4g} is well below chance ({chance:.4g}): labels are learned")
        unexplained = case.unexplained
        if model_facts.has_constant_inputs(case):
            yield opposes(STRONG, "the inputs never change: they tell nothing about any labels")
        if model_facts.is_linear(case):
            yield opposes(FAIR, "the model is linear: it stays at chance wherever no line parts the labels")
        is_at_chance = level is not None and chance is not None and abs(level / chance - 1.0) < NEAR_CHANCE
        if unexplained is not None and unexplained > 1.0 - NEAR_CHANCE and not is_at_chance:
            text = f"loss is {100 * unexplained:.0f} % of the best without a look at the inputs"
            yield supports(STRONG if chance is None else FAIR, f"{text}: nothing in them tells the targets")
        elif unexplained is not None and chance is None and case.found("overfitting") and case.is_guessing:
            text = f"validation was never better than an answer without a look at the inputs ({case.guess:.4g})"
            yield supports(STRONG, text)
        elif unexplained is not None and unexplained < LEARNED_FROM_CHANCE and chance is None:
            yield opposes(STRONG, f"loss is {100 * unexplained:.0f} % of the best without a look at the inputs")
        classes, scores = case.setting("num_classes"), case.accuracies()
        if classes and scores and max(scores) < 1.0 / classes + LUCKY:
            yield supports(SLIGHT, f"validation accuracy {scores[-1]:.2g} is at chance for {classes:.0f} classes")
        if chance is None and not case.found("not_learning"):
            return  # the rest is true of every healthy run
        update = case.typical_update
        if update is not None:
            if update < STILL:
                yield opposes(STRONG, f"weights hardly change: {update:.1g} of their norm per step")
            elif update > MOVES:
                yield supports(FAIR, f"weights change by {100 * update:.2g} % per step")
        found = [rule for rule in BLOCKERS if case.found(rule)]
        if found:
            yield opposes(FAIR, f"{', '.join(found)} would prevent learning any labels")
        elif case.sees("gradients") and case.sees("activations"):
            yield supports(SLIGHT, "gradients reach every layer; no layer is dead, saturated or frozen")
        if case.found("lr_too_high", "lr_too_low", "oscillation"):
            yield opposes(FAIR, "the learning rate alone would explain it")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="inspect ten inputs with their labels after every stage (shuffle, sampler, collate)",
            code="for x, y in list(loader)[:1]: print([(show(a), names[b]) for a, b in zip(x[:10], y[:10])])",
            avoid="do not train longer or change model or optimizer: they work, but there is no signal",
            verify="the model memorises one batch in 200 steps, and its loss falls below chance in one epoch",
        )
