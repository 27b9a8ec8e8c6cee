"""Weight decay removes more from the weights than the gradient adds."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, STRONG, Cause, Evidence, line_to_set, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

MUCH = 1e-3
"""Share of the weights that decay removes per step: a thousand steps leave a third."""
ALL = 0.02
"""Share that leaves nothing after two hundred steps, whatever the gradients are."""
LITTLE = 1e-4
BULK = 0.4
"""Share of the update below which the gradient, and not decay, decides what becomes of the weights."""
SHRUNK = 0.5


class WeightsDecayAway(Cause):
    """Weights, and with them activations, that shrink towards zero."""

    id = "weights_decay_away"
    title = "weights shrunk by weight decay"
    is_plain = True
    explains = STANDS_STILL | {
        "activation_collapse",
        "gradient_vanishing",
        "config_advice",
        "dead_units",
        "loss_spike",
        "divergence",
        "lr_too_high",
        "frozen_parameters",
    }
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        ratio = case.value("activation_collapse", "weight_ratio")
        if ratio is not None and ratio < SHRUNK:
            yield supports(STRONG, f"weight norms shrank to {100 * ratio:.2g} %")
            std, usual = case.value("activation_collapse", "std"), case.value("activation_collapse", "usual")
            if std is not None and usual is not None and std < usual:
                yield supports(FAIR, f"standard deviation of the activations fell from {usual:.2g} to {std:.2g}")
        elif ratio is not None:
            yield opposes(STRONG, f"weight norms did not shrink: {ratio:.2g}x their earlier value")
        taken = per_step(case)
        if taken is None:
            return
        update = case.typical_update
        if ratio is None and taken <= ALL and update is not None and taken < BULK * update:
            yield opposes(STRONG, f"decay removes {taken:.1g} of the weights per step, of updates of {update:.1g}")
        elif taken > MUCH:
            yield supports(
                DECISIVE if taken > ALL else STRONG, f"decay removes {100 * taken:.2g} % of the weights per step"
            )
        elif taken < LITTLE and ratio is None:
            yield opposes(STRONG, f"decay removes only {taken:.1g} of the weights per step")
        elif ratio is None:
            yield opposes(FAIR, f"decay removes {taken:.1g} of the weights per step, less than a usual gradient adds")

    def advise(self, case: Case) -> Advice:
        decay = case.hyper("weight_decay")
        usual = 0.01 if "AdamW" in case.optimizer else 1e-4
        was = f"was {decay:.2g}" if decay is not None else ""
        return Advice(
            first_fix=f"set weight_decay to {usual:g}, find what changed it and resume from before step {case.onset:,}",
            code=line_to_set(case, "weight_decay", f"{usual:g}", was),
            avoid="do not raise the learning rate instead: it multiplies the decay as well",
            verify="weight norms are constant or grow slowly over the next few hundred steps",
        )


def per_step(case: Case) -> float | None:
    """Share of the weights that decay removes per step; None where unknown, or where Adam scales it away."""
    decay, lr = case.hyper("weight_decay"), case.lr
    if decay == 0.0:
        return 0.0
    if decay is None or lr is None or ("Adam" in case.optimizer and "W" not in case.optimizer):
        return None
    momentum = case.hyper("momentum") or 0.0
    return decay * lr / max(0.01, 1.0 - momentum)
