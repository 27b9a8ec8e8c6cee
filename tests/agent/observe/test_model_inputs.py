"""Which tensor is looked at once a step's loss is known to be bad."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import caboose
from caboose.observe.batches import RECENT, SMALL, BatchCounter, after_an_incident
from caboose_wire import Batch, StepReport
from support.collector import Collector


def num_bad(batches: BatchCounter) -> int | None:
    batch = after_an_incident(Batch(index=0, epoch=0, shape=(2,)), batches.reachable())
    assert batch is not None
    return batch.num_bad


def test_the_input_that_the_loop_made_of_the_batch_is_looked_at() -> None:
    batches = BatchCounter()
    loaded = torch.zeros(4, 3)
    batches.see((loaded, torch.zeros(4)))
    assert num_bad(batches) == 0

    spoiled = loaded.clone()
    spoiled[1, 2] = float("nan")
    batches.see_input((spoiled,))
    del spoiled
    gc.collect()

    assert num_bad(batches) == 1, "a small one is kept until its report is made"


def test_large_inputs_and_old_ones_are_not_kept_alive() -> None:
    batches = BatchCounter()
    batches.see_input((torch.zeros(SMALL + 1),))
    assert num_bad(batches) is None

    batches.see_input((torch.zeros(3),))
    first = batches.reachable()
    for _ in range(RECENT):
        batches.see_input((torch.zeros(3),))
    assert first is not None
    assert first() is None


def test_indices_are_never_bad_and_the_batch_counts() -> None:
    batches = BatchCounter()
    loaded = torch.full((2,), float("inf"))
    batches.see(loaded)
    batches.see_input((torch.zeros(2, dtype=torch.long),))

    assert num_bad(batches) == 2


def test_without_a_watched_loader_the_input_has_no_index() -> None:
    batches = BatchCounter()
    batches.see_input((torch.tensor([[1.0, float("nan"), 3.0]]),))

    batch = after_an_incident(None, batches.reachable())

    assert batch is not None
    assert (batch.index, batch.shape, batch.num_bad) == (None, (1, 3), 1)


def test_a_sampled_step_has_the_range_of_its_input_without_a_watched_loader(
    attach: Callable[..., caboose.Monitor], network: torch.nn.Module, listening: Collector
) -> None:
    monitor = attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint, sampling=1)
    given = torch.tensor([[-2.0, 0.0, 1.0, 300.0]])
    monitor.step(network(given).mean())

    batch = listening.wait_for(StepReport)[0].batch
    assert batch is not None
    assert (batch.index, batch.lowest, batch.highest, batch.num_bad) == (None, -2.0, 300.0, 0)


@pytest.mark.parametrize(
    "given",
    [
        {"ids": torch.zeros(2, dtype=torch.long), "pixels": torch.tensor([float("nan")])},
        ([torch.zeros(2, dtype=torch.long), torch.tensor([float("nan")])], 3),
    ],
    ids=["by name, as Trainer calls", "the whole batch, as Lightning calls under DDP"],
)
def test_the_input_is_the_first_floating_point_tensor_of_the_call(given: Any) -> None:
    batches = BatchCounter()
    batches.see_input(given)
    assert num_bad(batches) == 1
