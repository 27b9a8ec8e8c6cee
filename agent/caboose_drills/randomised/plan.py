"""A run as it will be trained: what the draw says, and what a disease has changed."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from caboose_drills.loop import warm_up_then_cosine
from caboose_drills.randomised.draw import Draw

Tensors = tuple[Tensor, ...]
Loss = Callable[[nn.Module, Tensors], Tensor]

LEARNING_RATES = {
    "sgd": 0.05,
    "momentum": 0.02,
    "adam": 2e-3,
    "adamw": 2e-3,
    "adafactor": 0.03,
    "lion": 3e-4,
    "muon": 0.01,
}
"""That suit these small models."""
FRACTIONS = {"lstm": 1.5, "gan": 0.25, "rl": 0.5}
"""Of those, by family."""


@dataclass
class Data:
    """Training samples and held-out ones; the second tensor is the target, where there is one."""

    train: Tensors
    held: Tensors
    num_classes: int | None = None


@dataclass
class Plan:
    """What is trained, and how. Diseases change it before anything is built, or add hooks to it."""

    draw: Draw
    rng: random.Random
    """For what a disease draws."""
    lr: float
    weight_decay: float
    momentum: float
    batch: int
    steps: int
    depth: int
    activation: str
    dropout: float
    clip: float | None
    warm_up: int
    has_norms: bool
    rank: int = 0
    classes: int = 5
    num_train: int = 4000
    is_clustered: bool = False
    """Whether classes are several clusters each, which no linear model parts."""
    micro_batches: int = 1
    precision: str = "float32"
    has_target_net: bool = True
    discount: float = 0.9
    is_recurrent_plain: bool = False
    """Whether the recurrent model is a plain RNN."""
    lr_at: Callable[[int], float] | None = None
    """A factor on the learning rate at a step counted from 0, beside the schedule's."""
    edit_data: list[Callable[[Data], Data]] = field(default_factory=list)
    edit_model: list[Callable[[nn.Module], nn.Module]] = field(default_factory=list)
    edit_loss: list[Callable[[Loss], Loss]] = field(default_factory=list)
    spoil: Callable[[int, Tensors], Tensors] | None = None
    """Changes the batch of a step, counted from 1."""
    before_step: Callable[[int], None] | None = None
    is_trained: Callable[[str], bool] = lambda _: True
    """Whether a parameter of this name is given to the optimizer."""
    fast_part: tuple[str, float] | None = None
    """A word in the names of parameters that have a group of their own, and a factor on its learning rate."""
    edit_held: Callable[[Tensors], Tensors] | None = None
    """What validation reads instead of the held-out samples; the judgement of the run reads those."""
    zeroes_gradients: bool = True
    eval_from: int | None = None
    """The first step that is trained in eval mode."""
    keeps_graphs: bool = False
    batch_delay: Callable[[int], float] | None = None
    """Seconds that the loader takes longer for a step's batch."""
    step_delay: Callable[[int], float] | None = None
    """Seconds that this rank takes longer for a step."""
    wasted: float = 0.0
    """Seconds that a disease takes of each step, on any rank."""
    batch_from: tuple[int, int] | None = None
    """A step, and the batch size from there on."""
    restarts_at: int | None = None
    """The step at which the run is resumed."""
    adversary_lr: float = 1.0
    """A factor on the discriminator's learning rate."""
    origin_ranks: tuple[int, ...] = ()
    origin_layers: tuple[str, ...] = ()

    def factor(self, step: int) -> float:
        """The factor on the learning rate at a step counted from 0."""
        name, extra = self.draw.schedule, self.lr_at(step) if self.lr_at is not None else 1.0
        if name == "constant":
            return extra
        warm_up = self.warm_up if name == "warmup_cosine" else 0
        return extra * warm_up_then_cosine(step, self.steps, warm_up)


def of(draw: Draw, rank: int = 0) -> Plan:
    """The healthy plan of a draw's base."""
    has_few_steps = draw.family in ("pre_ln", "post_ln")
    return Plan(
        draw=draw,
        rng=random.Random(f"fault {draw.id}"),
        lr=LEARNING_RATES[draw.optimizer] * FRACTIONS.get(draw.family, 1.0),
        weight_decay=0.01 if draw.optimizer in ("adamw", "lion", "muon") else 0.0,
        momentum=0.9,
        batch=draw.batch,
        steps=draw.steps,
        depth=draw.depth,
        activation=draw.activation,
        dropout=draw.dropout,
        clip=draw.clip or None,
        warm_up=draw.steps // 10,
        has_norms=draw.has_norms,
        rank=rank,
        classes=random.Random(f"classes {draw.base}").choice((4, 5, 8)),
        num_train=2500 if has_few_steps else 4000,
        micro_batches=2 if draw.loop == "accumulation" else 1,
        is_clustered=draw.seed % 2 == 0,
    )


def seeded(plan: Plan, offset: int = 0) -> torch.Generator:
    """A generator of the draw's seed."""
    return torch.Generator().manual_seed(plan.draw.seed + offset)
