"""Optimizers by name: torch's, and Lion, which torch does not have."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from caboose_drills.randomised.plan import Plan


class Lion(torch.optim.Optimizer):
    """The sign of an average of gradients."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # frameworks pass a closure
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            fast, slow = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                average = state["average"]
                parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                parameter.add_(torch.sign(fast * average + (1.0 - fast) * parameter.grad), alpha=-group["lr"])
                average.mul_(slow).add_(parameter.grad, alpha=1.0 - slow)


def build(plan: Plan, model: nn.Module) -> list[torch.optim.Optimizer]:
    """One optimizer; for Muon a second one, of what is no matrix."""
    named = [(name, p) for name, p in model.named_parameters() if plan.is_trained(name.removeprefix("module."))]
    params: list[Any] = [p for _, p in named] if plan.fast_part is None else _groups(plan, named)
    lr, decay, name = plan.lr, plan.weight_decay, plan.draw.optimizer
    if name == "muon":
        inner = [p for n, p in named if p.ndim == 2 and "embed" not in n and "head" not in n]
        rest = [p for n, p in named if not (p.ndim == 2 and "embed" not in n and "head" not in n)]
        made: list[torch.optim.Optimizer] = []
        if inner:
            made.append(torch.optim.Muon(inner, lr=lr, weight_decay=decay))
        if rest:
            made.append(torch.optim.AdamW(rest, lr=lr / 5, weight_decay=decay))
        return made
    options: dict[str, Any] = {"lr": lr, "weight_decay": decay}
    if name in ("sgd", "momentum"):
        return [torch.optim.SGD(params, momentum=plan.momentum if name == "momentum" else _plain(plan), **options)]
    if name == "adafactor":
        return [torch.optim.Adafactor(params, **options)]
    betas = (plan.momentum, 0.999)
    kinds: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "lion": Lion}
    if name == "lion":
        return [Lion(params, betas=(plan.momentum, 0.99), **options)]
    return [kinds[name](params, betas=betas, **options)]


def _groups(plan: Plan, named: list[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
    assert plan.fast_part is not None, "only then there are two"
    word, factor = plan.fast_part
    fast, rest = [p for n, p in named if word in n], [p for n, p in named if word not in n]
    return [{"params": fast, "lr": plan.lr * factor}, {"params": rest}]


def _plain(plan: Plan) -> float:
    """Plain SGD has no momentum, unless a disease gave it one."""
    return plan.momentum if plan.momentum > 0.9 else 0.0
