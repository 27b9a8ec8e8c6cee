"""Diseases of the data: what they change in a plan."""

import random
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from caboose_drills.randomised.plan import Data, Plan, Tensors, seeded


def nan_input(plan: Plan) -> None:
    """Missing values in one batch, of one rank where there are several."""
    bad = plan.draw.seed % plan.draw.world
    if plan.draw.world > 1:
        plan.origin_ranks = (bad,)

    def spoil(step: int, batch: Tensors) -> Tensors:
        if step != plan.draw.onset or plan.rank != bad:
            return batch
        first = batch[0].clone()
        first[0].view(-1)[: 1 + plan.draw.seed % 3] = float("nan")
        return (first, *batch[1:])

    plan.spoil = spoil


def corrupt_batch(plan: Plan) -> None:
    """A few batches that were not normalised."""
    size, long = 10.0 * (10.0**plan.draw.strength), 1 + plan.draw.seed % 3

    def spoil(step: int, batch: Tensors) -> Tensors:
        is_bad = plan.draw.onset <= step < plan.draw.onset + long
        return (size * batch[0] + 1.0, *batch[1:]) if is_bad else batch

    plan.spoil = spoil


def data_changed(plan: Plan) -> None:
    """From the onset on, targets belong to other samples, or inputs come in another order."""
    is_target = plan.draw.seed % 3 != 0 or not batch_is_flat(plan)
    order = torch.randperm(24, generator=seeded(plan, 5))

    def spoil(step: int, batch: Tensors) -> Tensors:
        if step < plan.draw.onset:
            return batch
        if is_target:
            return (batch[0], torch.roll(batch[1], 1, dims=0), *batch[2:])
        return (batch[0][:, order], *batch[1:])

    plan.spoil = spoil


def batch_is_flat(plan: Plan) -> bool:
    """Whether inputs are vectors."""
    return plan.draw.family in ("mlp", "autoencoder", "contrastive")


def labels_shuffled(plan: Plan) -> None:
    plan.edit_data.append(lambda data: replace(data, train=_shuffled(plan, data.train)))


def _shuffled(plan: Plan, train: Tensors) -> Tensors:
    order = torch.randperm(len(train[1]), generator=seeded(plan, 6))
    return (train[0], train[1][order], *train[2:])


def label_noise(plan: Plan) -> None:
    share = 0.5 + 0.35 * plan.draw.strength

    def noisy(data: Data) -> Data:
        labels, draw = data.train[1].clone(), seeded(plan, 7)
        is_wrong = torch.rand(len(labels), generator=draw) < share
        labels[is_wrong] = torch.randint(data.num_classes or 2, (int(is_wrong.sum()),), generator=draw)
        return replace(data, train=(data.train[0], labels))

    plan.edit_data.append(noisy)


def unnormalised(plan: Plan) -> None:
    """Inputs as they were measured: large, and far from zero."""
    scale = 10.0 ** (1.7 + 1.3 * plan.draw.strength)
    shift = scale * random.Random(plan.draw.seed).choice((0.0, 1.0, 3.0))
    plan.has_norms = False

    def raw(tensors: Tensors) -> Tensors:
        inputs = scale * tensors[0] + shift
        return (inputs, scale * tensors[1] + shift) if plan.draw.family == "contrastive" else (inputs, *tensors[1:])

    plan.edit_data.append(lambda data: replace(data, train=raw(data.train), held=raw(data.held)))


def constant_input(plan: Plan) -> None:
    """Every sample is the same: an index that never moves, or an image that was not read."""
    is_zero = plan.draw.seed % 2 == 0

    def same(inputs: Tensor) -> Tensor:
        return torch.zeros_like(inputs) if is_zero else inputs[:1].expand_as(inputs).contiguous()

    plan.edit_data.append(lambda data: replace(data, train=(same(data.train[0]), *data.train[1:])))


def overfitting(plan: Plan) -> None:
    """A few hundred samples, seen dozens of times."""
    plan.num_train = {"mlp": 100, "cnn": 80, "lstm": 60, "pre_ln": 60}[plan.draw.family] * plan.draw.world
    plan.steps, plan.dropout, plan.weight_decay = max(plan.steps, 400), 0.0, 0.0
    plan.batch = min(plan.batch, 32)


def validation_shift(plan: Plan) -> None:
    """Validation is preprocessed otherwise than training."""
    size, shift = 2.5 + 5.0 * plan.draw.strength, float(plan.draw.seed % 2)
    plan.edit_held = lambda tensors: (size * tensors[0] + shift, *tensors[1:])


def imbalance(plan: Plan) -> None:
    """One class is nearly all of the training data."""
    share = 0.93 + 0.06 * plan.draw.strength

    def few(data: Data) -> Data:
        draw = seeded(plan, 8)
        is_kept = (data.train[1] == 0) | (torch.rand(len(data.train[1]), generator=draw) < (1 - share) / share / 3)
        chosen = is_kept.nonzero().squeeze(1)
        chosen = chosen[torch.randint(len(chosen), (len(data.train[1]),), generator=draw)]
        return replace(data, train=tuple(t[chosen] for t in data.train))

    plan.edit_data.append(few)


def bad_rank(plan: Plan) -> None:
    """One rank reads a shard that was decoded wrongly, from the onset on."""
    bad = plan.draw.seed % plan.draw.world
    plan.origin_ranks = (bad,)
    size = 3.0 + 3.0 * plan.draw.strength

    def spoil(step: int, batch: Tensors) -> Tensors:
        if plan.rank != bad or step < plan.draw.onset:
            return batch
        if len(batch) > 1 and plan.draw.seed % 2:
            return (batch[0], torch.roll(batch[1], 1, dims=0), *batch[2:])
        return (-size * batch[0] + 1.0, *batch[1:])

    plan.spoil = spoil


FAULTS: dict[str, Callable[[Plan], None]] = {
    "nan_input": nan_input,
    "corrupt_batch": corrupt_batch,
    "data_changed": data_changed,
    "labels_shuffled": labels_shuffled,
    "label_noise": label_noise,
    "unnormalised": unnormalised,
    "constant_input": constant_input,
    "overfitting": overfitting,
    "validation_shift": validation_shift,
    "imbalance": imbalance,
    "bad_rank": bad_rank,
}
