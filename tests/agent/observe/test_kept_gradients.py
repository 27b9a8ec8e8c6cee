"""Loops that never clear their gradients, and all the ways in which the others do."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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


def trained(
    clear: Clear,
    *,
    clips: bool = False,
    forwards: int = 1,
    passes: int = 1,
    steps: int = 12,
    model: nn.Module | None = None,
) -> KeptGradients:
    model = nn.Linear(4, 2) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    kept = KeptGradients(list(model.parameters()))
    for _ in range(steps):
        clear(optimizer, model, "start")
        for number in range(passes):
            loss = sum(model(torch.randn(3, 4)).square().mean() for _ in range(forwards))
            if not number:
                clear(optimizer, model, "before backward")
            kept.note_backward()
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


@pytest.mark.parametrize("settings", [{"forwards": 2}, {"passes": 3}, {"forwards": 2, "passes": 2}])
def test_several_passes_in_a_step_are_told_apart_from_what_is_kept(settings: dict[str, int]) -> None:
    assert trained(never, **settings).are_kept
    assert not any(trained(clear, **settings).are_kept for clear in (in_front, in_between, at_the_end))


def test_a_model_without_trained_parameters_is_not_watched() -> None:
    assert not KeptGradients([torch.zeros(3)]).is_watching


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("clips", [False, True])
def test_gradients_that_ddp_copies_are_kept_or_cleared_as_others(clips: bool) -> None:
    def ddp(clear: Clear, **settings: bool) -> bool:
        return trained(clear, clips=clips, model=DistributedDataParallel(nn.Linear(4, 2), **settings)).are_kept

    assert ddp(never)
    assert not any(ddp(clear) for clear in (in_front, in_between, at_the_end))
    assert not ddp(never, gradient_as_bucket_view=True), "views are not judged"
