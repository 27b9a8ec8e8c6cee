"""A small classifier with layers of experts, of which each sample goes to one."""

import torch
from torch import Tensor, nn


class ExpertLayer(nn.Module):
    """A residual layer: a gate chooses one expert for each sample."""

    top_k = 1

    def __init__(self, width: int, num_experts: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, num_experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(num_experts)
        )
        self.balance: Tensor = torch.zeros(())
        """Of the last call: 1 for equal shares, up to the number of experts."""

    def forward(self, x: Tensor) -> Tensor:
        inputs = self.norm(x)
        shares = self.gate(inputs).softmax(dim=-1)
        weights, chosen = shares.max(dim=-1)
        used = nn.functional.one_hot(chosen, shares.shape[-1]).to(x.dtype)
        self.balance = shares.shape[-1] * (used.mean(dim=0) * shares.mean(dim=0)).sum()
        outputs = torch.stack([expert(inputs) for expert in self.experts], dim=1)  # small: all experts may run
        chosen_ones: Tensor = (outputs * used[:, :, None]).sum(dim=1)
        out: Tensor = x + weights[:, None] * chosen_ones
        return out


class ExpertNet(nn.Module):
    """An input layer, layers of experts, and a head."""

    def __init__(self, inputs: int, classes: int, *, width: int = 32, num_experts: int = 8, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(ExpertLayer(width, num_experts) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out

    def imbalance(self) -> Tensor:
        """The load-balancing loss of the last call (Switch Transformer), mean over the layers."""
        return torch.stack([block.balance for block in self.layers]).mean()

    @property
    def layers(self) -> list[ExpertLayer]:
        """Those with experts."""
        return [block for block in self.blocks if isinstance(block, ExpertLayer)]
