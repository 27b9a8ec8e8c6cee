"""Batches that are sorted by class, also where some hold two classes, and those that only look so."""

import pytest
import torch

from caboose.trials.mixing import are_sorted


def batches(targets: torch.Tensor, size: int) -> list[torch.Tensor]:
    return list(targets.split(size))


@pytest.mark.parametrize(("size", "per_class"), [(16, 32), (16, 24), (20, 50), (8, 100)])
def test_sorted_data_are_found_though_batches_straddle_classes(size: int, per_class: int) -> None:
    assert are_sorted(batches(torch.arange(6).repeat_interleave(per_class), size))


@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("seed", range(5))
def test_shuffled_data_are_not(classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    assert not are_sorted(batches(torch.randint(0, classes, (128,), generator=generator), 16))


def test_a_rare_class_and_small_batches_are_not() -> None:
    rare = (torch.arange(256) % 32 == 0).long()
    assert not are_sorted(batches(rare, 16))
    assert not are_sorted(batches(torch.arange(6).repeat_interleave(4), 2))
    assert not are_sorted(batches(torch.randn(64), 16))
