"""Generated data of every family, that can be learned in a few hundred steps."""

import torch
from torch import Tensor
from torch.nn import functional as F

from caboose_drills.randomised.plan import Data, Plan, Tensors, seeded

HELD = 400
WIDTH = 24
SIDE = 10
LENGTH = 16
ACTIONS = 4
MOVES = torch.tensor([[0.2, 0.0], [-0.2, 0.0], [0.0, 0.2], [0.0, -0.2]])
"""Where each action leads."""


def build(plan: Plan) -> Data:
    """The data of the plan's family, as its disease changed it."""
    data = _BUILDERS[plan.draw.family](plan)
    for edit in plan.edit_data:
        data = edit(data)
    return data


def _split(tensors: Tensors, num_train: int, classes: int | None = None) -> Data:
    return Data(tuple(t[HELD:][:num_train] for t in tensors), tuple(t[:HELD] for t in tensors), classes)


def _clusters(plan: Plan) -> Data:
    draw, num = seeded(plan), plan.num_train + HELD
    each = 3 if plan.is_clustered else 1
    centres = 1.1 * torch.randn(plan.classes * each, WIDTH, generator=draw)
    which = torch.randint(len(centres), (num,), generator=draw)
    inputs = centres[which] + 1.3 * torch.randn(num, WIDTH, generator=draw)
    inputs = inputs / inputs.std()
    return _split((inputs, which % plan.classes), plan.num_train, plan.classes)


def _images(plan: Plan) -> Data:
    draw, num = seeded(plan), plan.num_train + HELD
    coarse = torch.randn(plan.classes, 2, 4, 4, generator=draw)
    templates = F.interpolate(coarse, SIDE, mode="bilinear")
    labels = torch.randint(plan.classes, (num,), generator=draw)
    shifts = torch.randint(-2, 3, (num,), generator=draw)
    images = templates[labels] + 0.8 * torch.randn(num, 2, SIDE, SIDE, generator=draw)
    for shift in range(-2, 3):
        images[shifts == shift] = torch.roll(images[shifts == shift], shift, dims=-1)
    return _split((images, labels), plan.num_train, plan.classes)


def _text(plan: Plan) -> Data:
    draw, num, letters = seeded(plan), plan.num_train + HELD, 8 * plan.classes
    order = torch.argsort(torch.rand(letters, letters, generator=draw), dim=1).float()
    chances = 1.0 / (1.0 + order) ** 1.7
    chances = chances / chances.sum(dim=1, keepdim=True)
    tokens = torch.empty(num, LENGTH + 1, dtype=torch.long)
    tokens[:, 0] = torch.randint(letters, (num,), generator=draw)
    for place in range(LENGTH):
        tokens[:, place + 1] = torch.multinomial(chances[tokens[:, place]], 1, generator=draw).squeeze(1)
    return _split((tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()), plan.num_train, letters)


def _series(plan: Plan) -> Data:
    """The next value of a mix of waves, at every place."""
    draw, num = seeded(plan), min(plan.num_train, 3000) + HELD
    time = torch.arange(LENGTH + 1).float()
    speed = 0.3 + 0.5 * torch.rand(num, 2, 1, generator=draw)
    phase = 6.3 * torch.rand(num, 2, 1, generator=draw)
    waves = torch.sin(speed * time + phase).sum(dim=1) + 0.05 * torch.randn(num, LENGTH + 1, generator=draw)
    return _split((waves[:, :-1, None].contiguous(), waves[:, 1:, None].contiguous()), plan.num_train)


def _points(plan: Plan) -> Tensor:
    """Points on a curved surface of a few dimensions."""
    draw, num = seeded(plan), plan.num_train + HELD
    hidden = torch.randn(num, 5, generator=draw)
    points = torch.tanh(hidden @ torch.randn(5, WIDTH, generator=draw))
    return points / points.std()


def _noisy_points(plan: Plan) -> Data:
    clean = _points(plan)
    noisy = clean + 0.3 * torch.randn(clean.shape, generator=seeded(plan, 1))
    return _split((noisy, clean), plan.num_train)


def _plain_points(plan: Plan) -> Data:
    return _split((_points(plan),), plan.num_train)


def _rings(plan: Plan) -> Data:
    draw, num = seeded(plan), plan.num_train + HELD
    angle = 6.2832 * torch.randint(8, (num,), generator=draw).float() / 8
    points = torch.stack((angle.cos(), angle.sin()), dim=1) + 0.08 * torch.randn(num, 2, generator=draw)
    return _split((points * 1.4,), plan.num_train)


def _views(plan: Plan) -> Data:
    """Two noisy views of each point."""
    clean = _points(plan)
    first, second = (clean + 0.3 * torch.randn(clean.shape, generator=seeded(plan, n)) for n in (1, 2))
    return _split((first, second), plan.num_train)


def _transitions(plan: Plan) -> Data:
    """State, action, reward, next state and whether it is the last, of a random walk towards a goal."""
    draw, num = seeded(plan), plan.num_train + HELD
    state = 2.0 * torch.rand(num, 4, generator=draw) - 1.0
    action = torch.randint(ACTIONS, (num,), generator=draw)
    later = state.clone()
    later[:, :2] = (later[:, :2] + MOVES[action] + 0.03 * torch.randn(num, 2, generator=draw)).clamp(-1.0, 1.0)
    distance = (later[:, :2] - later[:, 2:]).norm(dim=1)
    is_last = (distance < 0.25).float()
    reward = is_last - 0.1 * distance
    return _split((state, action, reward, later, is_last), plan.num_train)


def _sequences(plan: Plan) -> Data:
    return _text(plan) if plan.draw.seed % 2 else _series(plan)


_BUILDERS = {
    "mlp": _clusters,
    "cnn": _images,
    "lstm": _sequences,
    "pre_ln": _text,
    "post_ln": _text,
    "autoencoder": _noisy_points,
    "vae": _plain_points,
    "diffusion": _plain_points,
    "contrastive": _views,
    "gan": _rings,
    "rl": _transitions,
}
