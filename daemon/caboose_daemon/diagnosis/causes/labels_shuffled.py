"""Inputs and labels do not belong together: everything works, and there is nothing to learn."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import LUCKY, NEAR_CHANCE, Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.causes.memorising import FEW_EPOCHS
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

LEARNED = 0.9
"""Share of chance below which a loss shows that something is learned."""
MOVES, STILL = 1e-4, 1e-5
"""Shares of itself that a weight matrix moves by in a step when training works, and when it does not."""
MACHINERY = ("frozen_parameters", "gradient_vanishing", "dead_units", "saturation", "activation_collapse", "eval_mode")
"""Rules about what keeps a model from learning whatever the data is."""


class LabelsShuffled(Cause):
    """Labels that say nothing about their inputs."""

    id = "labels_shuffled"
    title = "the labels do not belong to the inputs"
    explains = frozenset({"not_learning", "underfitting", "plateau", "metric_divergence", "overfitting"})
    """Labels that cannot be learned can still be known by heart, where the data is small enough."""

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """At chance, though weights move and gradients reach every layer."""
        level, chance = case.level, case.chance
        if level is not None and chance is not None:
            if abs(level / chance - 1.0) < NEAR_CHANCE:
                yield supports(FAIR, f"the loss of {level:.4g} is chance ({chance:.4g}): no input helps to guess")
            elif case.found("overfitting") and case.is_guessing and not _was_learned_while_new(case, chance):
                yield supports(
                    STRONG,
                    f"the training loss fell to {level:.4g} by heart alone: validation was never better than guessing"
                    f" ({chance:.4g})",
                )
            elif level < LEARNED * chance:
                yield opposes(
                    STRONG, f"the loss of {level:.4g} is well below chance ({chance:.4g}): labels are learned"
                )
        classes, scores = case.setting("num_classes"), case.accuracies()
        if classes and scores and max(scores) < 1.0 / classes + LUCKY:
            yield supports(SLIGHT, f"validation accuracy is a guess too: {scores[-1]:.2g} of {classes:.0f} classes")
        if chance is None and not case.found("not_learning"):
            return  # what follows is what every run that works looks like
        update = case.update_ratio
        if update is not None:
            if update < STILL:
                yield opposes(STRONG, f"weights hardly move ({update:.1g} of themselves in a step)")
            elif update > MOVES:
                yield supports(FAIR, f"weights do move, by {100 * update:.2g} % of themselves in a step")
        found = [rule for rule in MACHINERY if case.found(rule)]
        if found:
            yield opposes(FAIR, f"{', '.join(found)} would keep it from learning any labels")
        elif case.sees("gradients") and case.sees("activations"):
            yield supports(SLIGHT, "gradients reach every layer, and no layer is dead, saturated or frozen")
        if case.found("lr_too_high", "lr_too_low", "oscillation"):
            yield opposes(FAIR, "the learning rate alone would explain it")

    def advise(self, case: Case) -> Advice:
        """Overfit one batch, then look at pairs."""
        return Advice(
            first_fix="look at ten inputs with their labels, after every stage (shuffle, sampler, collate)",
            code="for x, y in list(loader)[:1]: print([(show(a), names[b]) for a, b in zip(x[:10], y[:10])])",
            avoid="do not train for more epochs, and do not change model or optimizer: they work, there is no signal",
            verify="one batch can be learned by heart in 200 steps, and the whole set falls below chance in one epoch",
        )


def _was_learned_while_new(case: Case, chance: float) -> bool:
    """Whether the training loss fell before a sample could be known by heart: then its labels do fit the inputs."""
    new = [s.step for s in case.recent if (epochs := case.epochs_at(s.step)) is not None and epochs < FEW_EPOCHS]
    train = case.train_at(new[-1]) if new else None
    return train is not None and train < LEARNED * chance
