"""Loops that never clear their gradients, and all the ways in which the others do."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from caboose.observe.kept_gradients import KeptGradients

Clear = Callable[[torch.optim.Optimizer, nn.Module, str], None]


def never(optimizer: torch.optim.Optimizer, model: nn.Module, when: str) -> None:
    """Not at all."""


def in_front(optimizer: torch.optim.Optimizer, model: nn.Module, when: str) -> None:
    if when == "start":
        optimizer.zero_grad()


def in_between(optimizer: torch.optim.Optimizer, model: nn.Module, when: str) -> None:
    if when == "before backward":
        optimizer.zero_grad(set_to_none=False)


def at_the_end(optimizer: torch.optim.Optimizer, model: nn.Module, when: str) -> None:
    if when == "end":
        model.zero_grad(set_to_none=False)


def trained(clear: Clear, *, clips: bool = False, passes: int = 1, steps: int = 12) -> KeptGradients:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    kept = KeptGradients(list(model.parameters()))
    for _ in range(steps):
        clear(optimizer, model, "start")
        for _ in range(passes):
            kept.note_forward()
            loss = model(torch.randn(3, 4)).square().mean()
        clear(optimizer, model, "before backward")
        loss.backward()
        if clips:
            kept.note_clip()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        kept.before_step()
        optimizer.step()
        kept.after_step()
        clear(optimizer, model, "end")
    return kept


@pytest.mark.parametrize("clips", [False, True])
def test_gradients_that_are_never_cleared_are_kept(clips: bool) -> None:
    kept = trained(never, clips=clips)

    assert kept.are_kept
    assert not kept.is_watching


@pytest.mark.parametrize("clear", [in_front, in_between, at_the_end])
@pytest.mark.parametrize("clips", [False, True])
def test_cleared_gradients_are_not(clear: Clear, clips: bool) -> None:
    kept = trained(clear, clips=clips)

    assert not kept.are_kept
    assert not kept.is_watching, "it costs nothing from then on"


@pytest.mark.parametrize("clear", [in_between, at_the_end])
def test_two_forward_passes_in_a_step_are_not_judged(clear: Clear) -> None:
    assert not trained(clear, passes=2).are_kept


def test_a_model_without_trained_parameters_is_not_watched() -> None:
    assert not KeptGradients([torch.zeros(3)]).is_watching
