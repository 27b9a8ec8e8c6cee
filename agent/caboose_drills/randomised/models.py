"""A small model of every family."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from caboose_drills.randomised.plan import Data, Plan
from caboose_drills.randomised.tasks import ACTIONS, WIDTH

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "none": nn.Identity,
}
NOISE, LATENT = 2, 4


def build(plan: Plan, data: Data) -> nn.Module:
    """The model of the plan's family, as its disease changed it."""
    model = _BUILDERS[plan.draw.family](plan, data)
    for edit in plan.edit_model:
        model = edit(model)
    return model


def dense(plan: Plan, inputs: int, outputs: int, depth: int | None = None) -> nn.Sequential:
    """Layers `layer1`, `layer2` ... and a `head`."""
    model, width = nn.Sequential(), inputs
    for number in range(1, (plan.depth if depth is None else depth) + 1):
        layer = nn.Sequential()
        layer.add_module("linear", nn.Linear(width, plan.draw.width))
        if plan.has_norms:
            layer.add_module("norm", nn.BatchNorm1d(plan.draw.width))
        layer.add_module("act", ACTIVATIONS[plan.activation]())
        if plan.dropout:
            layer.add_module("dropout", nn.Dropout(plan.dropout))
        model.add_module(f"layer{number}", layer)
        width = plan.draw.width
    model.add_module("head", nn.Linear(width, outputs))
    return model


class ConvNet(nn.Module):
    """Convolutions, each with a batch norm, and a linear head."""

    def __init__(self, plan: Plan, classes: int) -> None:
        super().__init__()
        blocks, channels = [], 2
        for _ in range(plan.depth):
            block = nn.Sequential()
            block.add_module("conv", nn.Conv2d(channels, plan.draw.width // 4, 3, padding=1, bias=not plan.has_norms))
            if plan.has_norms:
                block.add_module("norm", nn.BatchNorm2d(plan.draw.width // 4))
            block.add_module("act", ACTIVATIONS[plan.activation]())
            channels = plan.draw.width // 4
            blocks.append(block)
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(plan.dropout)
        self.head = nn.Linear(channels * 9, classes)

    def forward(self, images: Tensor) -> Tensor:
        pooled = F.adaptive_avg_pool2d(self.blocks(images), 3)
        out: Tensor = self.head(self.dropout(pooled.flatten(1)))
        return out


class Recurrent(nn.Module):
    """An LSTM over letters or numbers."""

    def __init__(self, plan: Plan, letters: int | None) -> None:
        super().__init__()
        width = plan.draw.width
        self.embed: nn.Module = nn.Embedding(letters, width) if letters else nn.Linear(1, width)
        kind = nn.RNN if plan.is_recurrent_plain else nn.LSTM
        self.rnn = kind(width, width, num_layers=min(2, plan.depth - 1), batch_first=True)
        self.head = nn.Linear(width, letters or 1)

    def forward(self, sequence: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(self.embed(sequence))[0])
        return out


class Block(nn.Module):
    """Attention and MLP, with the norm before or after."""

    def __init__(self, plan: Plan, width: int, *, is_pre: bool) -> None:
        super().__init__()
        self.is_pre = is_pre
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.act = nn.Linear(width, 2 * width), nn.GELU()
        self.down, self.dropout = nn.Linear(2 * width, width), nn.Dropout(plan.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.is_pre:
            x = x + self._attend(self.norm1(x), mask)
            return x + self._think(self.norm2(x))
        x = self.norm1(x + self._attend(x, mask))
        out: Tensor = self.norm2(x + self._think(x))
        return out

    def _attend(self, x: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.attention(x, x, x, attn_mask=mask, need_weights=False)[0])
        return out

    def _think(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.down(self.act(self.up(x))))
        return out


class LanguageModel(nn.Module):
    """A decoder-only transformer."""

    def __init__(self, plan: Plan, letters: int) -> None:
        super().__init__()
        width, is_pre = plan.draw.width, plan.draw.family == "pre_ln"
        self.embed = nn.Embedding(letters, width)
        self.position = nn.Parameter(0.02 * torch.randn(64, width))
        self.blocks = nn.ModuleList(Block(plan, width, is_pre=is_pre) for _ in range(plan.depth))
        self.norm: nn.Module = nn.LayerNorm(width) if is_pre else nn.Identity()
        self.head = nn.Linear(width, letters)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            x = block(x, mask)
        out: Tensor = self.head(self.norm(x))
        return out


class Coder(nn.Module):
    """An encoder and a decoder; with `is_variational`, of mean and log-variance."""

    def __init__(self, plan: Plan, *, is_variational: bool) -> None:
        super().__init__()
        self.is_variational = is_variational
        latent = LATENT + 2
        self.encoder = dense(plan, WIDTH, latent * (2 if is_variational else 1), max(1, plan.depth - 1))
        self.decoder = dense(plan, latent, WIDTH, max(1, plan.depth - 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        code = self.encoder(x)
        if not self.is_variational:
            return self.decoder(code), code, code
        mean, spread = code.chunk(2, dim=-1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decoder(mean + (0.5 * spread).exp() * noise), mean, spread


def _lstm(plan: Plan, data: Data) -> nn.Module:
    return Recurrent(plan, data.num_classes)


def _transformer(plan: Plan, data: Data) -> nn.Module:
    assert data.num_classes is not None
    return LanguageModel(plan, data.num_classes)


_BUILDERS: dict[str, Callable[[Plan, Data], nn.Module]] = {
    "mlp": lambda plan, data: dense(plan, WIDTH, data.num_classes or 1),
    "cnn": lambda plan, data: ConvNet(plan, data.num_classes or 1),
    "lstm": _lstm,
    "pre_ln": _transformer,
    "post_ln": _transformer,
    "autoencoder": lambda plan, _: Coder(plan, is_variational=False),
    "vae": lambda plan, _: Coder(plan, is_variational=True),
    "diffusion": lambda plan, _: dense(plan, WIDTH + 8, WIDTH),
    "contrastive": lambda plan, _: dense(plan, WIDTH, 16),
    "gan": lambda plan, _: dense(plan, NOISE + 4, 2),
    "rl": lambda plan, _: dense(plan, 4, ACTIONS),
}
