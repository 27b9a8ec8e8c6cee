"""Weight decay takes more from the weights than the gradient gives them."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import lines
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

MUCH = 1e-3
"""Share of the weights that decay takes in a step: a thousand steps would leave a third."""
LITTLE = 1e-4
SHRUNK = 0.5


class WeightsDecayAway(Cause):
    """Weights that melt away, and with them what the layers put out."""

    id = "weights_decay_away"
    title = "weight decay melts the weights away"
    explains = STANDS_STILL | {
        "activation_collapse",
        "gradient_vanishing",
        "dead_units",
        "loss_spike",
        "divergence",
        "lr_too_high",
        "frozen_parameters",
    }
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """What became of the weights, and how much decay takes in a step."""
        ratio = case.value("activation_collapse", "weight_ratio")
        if ratio is not None and ratio < SHRUNK:
            yield supports(STRONG, f"the typical weight matrix has shrunk to {ratio:.2g} of what it was")
            std, usual = case.value("activation_collapse", "std"), case.value("activation_collapse", "usual")
            if std is not None and usual is not None and std < usual:
                yield supports(FAIR, f"and outputs with it, from {usual:.2g} to {std:.2g}")
        elif ratio is not None:
            yield opposes(STRONG, f"weights are as large as before, {ratio:.2g} times")
        taken = per_step(case)
        if taken is None:
            return
        if taken > MUCH:
            yield supports(STRONG, f"decay takes {100 * taken:.2g} % of the weights in every step")
        elif taken < LITTLE and ratio is None:
            yield opposes(STRONG, f"decay takes {taken:.1g} of the weights in a step")
        elif ratio is None:
            yield opposes(FAIR, f"decay takes {taken:.1g} of the weights in a step, which a gradient outweighs")

    def advise(self, case: Case) -> Advice:
        """A usual decay, on matrices only."""
        decay = case.hyper("weight_decay")
        usual = 0.01 if "AdamW" in case.optimizer else 1e-4
        was = f"was {decay:.2g}" if decay is not None else ""
        return Advice(
            first_fix=f"set weight_decay to {usual:g}, check what changes it, and go back to before step {case.onset}",
            code=lines.setting(case, "weight_decay", f"{usual:g}", was),
            avoid="do not raise the learning rate to make up for it: it multiplies the decay as well",
            verify="the norms of the weight matrices stand or grow slowly over the next few hundred steps",
        )


def per_step(case: Case) -> float | None:
    """The share of the weights that decay takes in a step; None where it is not known, or Adam divides it away."""
    decay, lr = case.hyper("weight_decay"), case.lr
    if decay == 0.0:
        return 0.0
    if decay is None or lr is None or ("Adam" in case.optimizer and "W" not in case.optimizer):
        return None
    momentum = case.hyper("momentum") or 0.0
    return decay * lr / max(0.01, 1.0 - momentum)
