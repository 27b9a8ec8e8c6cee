"""Settings of model and optimizer that hardly any run learns with, as the agent's Hello and first samples show them.

Each limit is far beyond what is used on purpose. Every function returns the advice, or None.
"""

import math
import re
from collections.abc import Mapping, Sequence

from caboose_daemon.steps.settings import as_number, as_text
from caboose_daemon.steps.settings import number as setting
from caboose_wire import Group, Layer, Module
from caboose_wire.fields import Scalar

HIGH_DROPOUT = 0.8
HIGH_MOMENTUM = 0.995
LARGE_INIT, SMALL_INIT = 4.0, 0.01
"""Standard deviation of a layer's initial weights relative to He initialisation: of the largest layer."""
STRETCH = 3.0
"""Factor by which initial recurrent weights stretch a state at each step of a sequence."""
HIGH_EPS = 0.01
TOLD_APART = 0.7
"""Loss as a share of that of an answer without a look at the inputs, below which a model looks at them."""
HIGH_DECAY = 0.01
"""Share of the weights that decay removes at each step."""
FEW_SAMPLES = 2
HALF_DIGIT = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
"""The smallest change, as a share of a weight, that is not rounded away."""
SLACK = 0.02
NEAR = 0.15
"""Share of the way from the least loss of a second softmax to chance within which a loss fits it."""
SURE = 0.8
"""Accuracy above which a usual loss is far below that of a second softmax."""
DOMINANT, MIN_TARGETS = 0.85, 64
"""Share of the commonest class, among so many targets or more, at which a model need not look at its inputs."""
MIN_SAMPLES = 2
"""Batches that are alike by no chance; a run of short steps is sampled only a few times."""
BETTER = 0.01
VERY_LARGE = 300.0
"""Absolute value above which inputs are not the bytes of an image either."""
NORMS = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm")
MUCH = 0.05
"""Share of the parameters that matters."""

Facts = Mapping[str, Scalar]


def dropout(facts: Facts) -> str | None:
    """Dropout that leaves a fifth of the units, or fewer."""
    values = [float(p) for p in re.findall(r"\d*\.?\d+(?:e-?\d+)?", as_text(facts.get("dropout")))]
    highest = max(values, default=0.0)
    return f"dropout {highest:g} removes nearly all units at each step" if highest >= HIGH_DROPOUT else None


def momentum(groups: Sequence[Group]) -> str | None:
    """Momentum that carries a gradient on for hundreds of steps."""
    found = [value for group in groups if (value := momentum_of(group)) is not None]
    highest = max(found, default=0.0)
    if highest < HIGH_MOMENTUM:
        return None
    return f"momentum {highest:g}: each gradient acts for {1 / max(1e-6, 1 - highest):,.0f} steps (usual: 10)"


def momentum_of(group: Group) -> float | None:
    """`momentum`, or the first of `betas`."""
    value = as_number(group.settings.get("momentum"))
    if value is not None:
        return value
    first = re.match(r"[(\[]\s*([0-9.]+(?:e-?\d+)?)", as_text(group.settings.get("betas")))
    return float(first.group(1)) if first else None


def initial_weights(facts: Facts) -> str | None:
    """Weights that were drawn far too large, or all but zero."""
    highest, stretch = setting("init_he_max", facts), setting("init_recurrent", facts)
    if stretch is not None and stretch > STRETCH:
        return f"initial recurrent weights stretch a state {stretch:.2g}x at each step of a sequence"
    if highest is not None and highest > LARGE_INIT:
        return f"initial weights up to {highest:.2g}x those of He initialisation"
    if highest is not None and highest < SMALL_INIT:
        return f"initial weights at most {highest:.2g}x those of He initialisation: all but zero"
    return None


def decay(groups: Sequence[Group]) -> str | None:
    """Decay that halves the weights within seventy steps; where Adam divides it by its size, it is not known."""
    for group in groups:
        share = (as_number(group.settings.get("weight_decay")) or 0.0) * _highest_rate(group)
        is_scaled = group.optimizer in ("Adam", "NAdam", "RAdam", "Adamax")
        if share > HIGH_DECAY and not (is_scaled and not group.settings.get("decoupled_weight_decay")):
            return f"weight decay removes {100 * share:.2g} % of the weights at each step"
    return None


def _highest_rate(group: Group) -> float:
    return max(as_number(group.settings.get(name)) or 0.0 for name in ("lr", "initial_lr"))


def norm_of_few(facts: Facts, config: Facts, seen: float | None = None) -> str | None:
    """Batch norms over one or two samples; `seen`: how many the model was called with, if no loader is watched."""
    batch = setting("batch_size", config, facts)
    batch = seen if batch is None else batch
    if batch is None or batch > FEW_SAMPLES or "BatchNorm" not in as_text(facts.get("norms")):
        return None
    return f"batch norms over {batch:.0f} samples, whose mean and variance are noise: use GroupNorm or LayerNorm"


def large_inputs(layers: Sequence[Layer], modules: Sequence[Module], largest: Sequence[float]) -> str | None:
    """Inputs far beyond the bytes of an image, in each of several samples, with no norm before the first weights."""
    is_index = any("Embedding" in module.kind for module in modules)
    if is_index or len(largest) < MIN_SAMPLES or min(largest) <= VERY_LARGE:
        return None
    if not layers or any(layer.kind.startswith(NORMS) for layer in layers[:2]):
        return None
    return f"inputs of up to {max(largest):.3g}, with no norm before the first weights: they are not normalised"


def frozen_at_random(facts: Facts) -> str | None:
    """Frozen weights that nothing has ever trained, where they are a part of the model that matters."""
    frozen, total = setting("frozen_at_random", facts), setting("num_parameters", facts)
    if not frozen or not total or frozen < MUCH * total:
        return None
    return f"{100 * frozen / total:.2g} % of the parameters are frozen at their random initial values"


def kept_gradients(facts: Facts) -> str | None:
    """A loop that never sets its gradients to zero."""
    if facts.get("keeps_gradients") is not True:
        return None
    return "gradients are never set to zero: each step adds its gradient to all those before it"


def no_steps(facts: Facts) -> str | None:
    """A loop that never lets its optimizer step."""
    return "no optimizer has taken a step since the start" if facts.get("never_steps") is True else None


MISTAKES: Mapping[str, str] = {
    "softmax_twice": "the loss takes a softmax of the model's probabilities: it expects logits",
    "negated": "the loss is a negated one: training makes it larger",
    "no_log": "nll_loss is given probabilities, and expects their logarithms",
    "over_batch": "the loss's log_softmax is taken over the samples of the batch (dim=0), not over the classes",
}
"""What is wrong with a loss, by the agent's name for it."""


def loss_mistake(facts: Facts, loss: float | None) -> tuple[str, str] | None:
    """The name and the description of a mistake that the loss's own graph shows; a negated loss is below zero."""
    name = as_text(facts.get("loss_mistake"))
    if name not in MISTAKES or (name == "negated" and (loss is None or not loss < 0)):
        return None
    return ("softmax_twice" if name == "softmax_twice" else "wrong_loss"), MISTAKES[name]


def linear_pairs(facts: Facts) -> str | None:
    """Linear layers that follow one another directly, and so are one."""
    num = setting("linear_pairs", facts)
    if not num:
        return None
    return f"{num:.0f} linear layers follow another one without an activation between them: together they are linear"


def eps(groups: Sequence[Group]) -> str | None:
    """An epsilon beside which the square root of Adam's second moment is nothing: updates shrink with the gradient."""
    for group in groups:
        value = group.settings.get("eps")
        if isinstance(value, int | float) and value > HIGH_EPS:
            return f"eps {value:g} in {group.optimizer} is above most gradients: its steps are far below the rate"
    return None


def one_class(
    shares: Sequence[float], num_samples: float, accuracy: float | None, unexplained: float | None
) -> str | None:
    """Targets nearly all of one class, where neither evaluation nor loss shows that the others are distinguished.

    `unexplained` is the loss as a share of that of an answer without a look at the inputs.
    """
    if unexplained is not None and unexplained < TOLD_APART:
        return None
    if len(shares) < MIN_SAMPLES or num_samples < MIN_TARGETS or (share := sum(shares) / len(shares)) < DOMINANT:
        return None
    if accuracy is not None and accuracy > share + BETTER:
        return None
    return f"{100 * share:.0f} % of the targets are of one class: to answer always this one is right as often"


def rounding(facts: Facts, updates: Sequence[float]) -> str | None:
    """Updates that the weights' own precision rounds away, by the median of the samples."""
    precision = as_text(facts.get("precision"))
    half = HALF_DIGIT.get(precision)
    if half is None or len(updates) < 3:
        return None
    typical = sorted(updates)[len(updates) // 2]
    if typical >= half:
        return None
    return f"{precision} weights round away changes below {100 * half:.2g} %; a step changes {100 * typical:.1g} %"


def softmax_floor(classes: float) -> float:
    """The least cross entropy of probabilities that are taken for logits."""
    return math.log(math.e + classes - 1.0) - 1.0


def fits_second_softmax(loss: float, accuracy: float, classes: float) -> bool:
    """Whether an evaluation's loss is that of probabilities: the floor for a right answer, one more for a wrong one."""
    floor = softmax_floor(classes)
    return accuracy > SURE and abs(loss - (floor + 1.0 - accuracy)) < NEAR * (math.log(classes) - floor)


def softmax(modules: Sequence[Module], classes: float | None, lowest: float) -> str | None:
    """A model that ends in a softmax, with a loss that never was below what a second softmax allows."""
    if not modules or modules[-1].kind != "Softmax" or not classes:
        return None
    floor = softmax_floor(classes)
    if lowest < (1.0 - SLACK) * floor:
        return None
    return f"the model ends in a Softmax, and the loss stays above {floor:.3g}: cross entropy takes logits"
