"""The loss of every family, of a model and a batch."""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from caboose_drills.randomised.plan import Loss, Plan, Tensors
from caboose_drills.randomised.tasks import MOVES


def build(plan: Plan) -> Loss:
    """The right loss of the plan's family."""
    family = plan.draw.family
    if family == "rl":
        return Bootstrapped(plan)
    if family == "lstm":
        return _classes if plan.draw.seed % 2 else _squares
    return _LOSSES[family]


def quality(plan: Plan) -> Loss:
    """What a run is judged by: its right loss; of values, the share of states in which the best action is a bad one."""
    return _bad_actions if plan.draw.family == "rl" else build(plan)


def _bad_actions(model: nn.Module, batch: Tensors) -> Tensor:
    state = batch[0]
    chosen = model(state).argmax(dim=1)
    moved = state[:, :2] + MOVES[chosen]
    distance, nearer = ((place - state[:, 2:]).norm(dim=1) for place in (state[:, :2], moved))
    share: Tensor = (nearer >= distance).float().mean()
    return share


def _classes(model: nn.Module, batch: Tensors) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples and places."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _squares(model: nn.Module, batch: Tensors) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def _denoised(model: nn.Module, batch: Tensors) -> Tensor:
    return F.mse_loss(model(batch[0])[0], batch[1])


def _variational(model: nn.Module, batch: Tensors) -> Tensor:
    outputs, mean, spread = model(batch[0])
    divergence = 0.5 * (mean.square() + spread.exp() - 1.0 - spread).sum(dim=-1).mean()
    value: Tensor = F.mse_loss(outputs, batch[0]) + 0.01 * divergence
    return value


def _noise(model: nn.Module, batch: Tensors) -> Tensor:
    """The noise that was added, at a random time of the process."""
    clean = batch[0]
    time = torch.rand(len(clean), 1)
    noise = torch.randn_like(clean)
    signal = torch.cos(0.5 * math.pi * time)
    noisy = signal * clean + (1 - signal.square()).clamp(min=0).sqrt() * noise
    waves = torch.cat([f(k * math.pi * time) for k in (0.5, 1, 2, 4) for f in (torch.sin, torch.cos)], dim=1)
    return F.mse_loss(model(torch.cat((noisy, waves), dim=1)), noise)


def _pairs(model: nn.Module, batch: Tensors) -> Tensor:
    """Each view must be nearest to its sample's other view."""
    both = F.normalize(model(torch.cat((batch[0], batch[1]))), dim=1)
    first, second = both.chunk(2)
    return F.cross_entropy(first @ second.T / 0.2, torch.arange(len(first)))


class Bootstrapped:
    """The error of values against targets that a delayed copy of the model gives."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._copy: nn.Module | None = None
        self._num_calls = 0

    def __call__(self, model: nn.Module, batch: Tensors) -> Tensor:
        state, action, reward, later, is_last = batch
        values = model(state).gather(1, action[:, None]).squeeze(1)
        if not model.training:
            return F.mse_loss(values.detach(), reward + self._discounted(model, later, is_last))
        if self._plan.has_target_net:
            inner = getattr(model, "module", model)
            if self._copy is None:
                self._copy = copy.deepcopy(inner)
            self._num_calls += 1
            if self._num_calls % 20 == 0:
                self._copy.load_state_dict(inner.state_dict())
            return F.mse_loss(values, reward + self._discounted(self._copy, later, is_last))
        return F.mse_loss(values, reward + self._discounted(model, later, is_last))

    def _discounted(self, model: nn.Module, later: Tensor, is_last: Tensor) -> Tensor:
        with torch.no_grad():
            values: Tensor = self._plan.discount * (1.0 - is_last) * model(later).max(dim=1).values
        return values


_LOSSES: dict[str, Callable[[nn.Module, Tensors], Tensor]] = {
    "mlp": _classes,
    "cnn": _classes,
    "pre_ln": _classes,
    "post_ln": _classes,
    "autoencoder": _denoised,
    "vae": _variational,
    "diffusion": _noise,
    "contrastive": _pairs,
}
