"""Runs a block with a snapshot's weights in the model, and restores the current ones afterwards.

Design
------
A hunt runs a batch on the weights from before the fault, and the run then continues with its own. Only parameters and
buffers are exchanged: what a forward reads. They are written in place, as a rollback does, after the current ones were
copied to the host; when the block ends, however it ends, those bytes are written back. Optimizers, schedules and the
rest are never touched.

With shared snapshots (dedupe) the beginning is collective: all ranks enter at one boundary. What can fail on one rank
alone (the copy, without enough memory) is done before the ranks compare, so that none waits for another.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from caboose.rollback.device_copy import Lane
from caboose.rollback.errors import NotCarriedOut
from caboose.rollback.slots import Slot
from caboose.rollback.training_state import TrainingState
from caboose.tensors.tensor_tree import Parts, Tensors

if TYPE_CHECKING:
    from caboose.rollback.shard_owners import Owners


@contextmanager
def lent(
    slot: Slot | None, state: TrainingState, lane: Lane, owners: "Owners | None", problem: str = ""
) -> Iterator[None]:
    """The model with the slot's weights, within the block; `NotCarriedOut`, with nothing touched, if it cannot be."""
    targets: Tensors = {}
    former: Tensors = {}
    if slot is not None and not problem:
        try:
            state.settle()
            targets, _ = slot.whole.targets(Parts(state.model_tensors()), _is_left)
            former = {name: tensor.to("cpu", copy=True) for name, tensor in targets.items()}
        except Exception as error:  # noqa: BLE001 - memory may be short; ranks that share must all hear of it
            problem = f"the snapshot of step {slot.step} could not be lent: {error!r}"
    if owners is not None:
        problem = owners.compare(problem)
    if problem or slot is None:
        raise NotCarriedOut(problem)
    try:
        with torch.no_grad():
            mine = [name for name in targets if name in slot.layout.specs]
            lane.back([targets[name] for name in mine], slot.views(mine))
            if owners is not None:
                owners.give_back(slot, targets)
        yield
    finally:
        with torch.no_grad():
            lane.back(list(targets.values()), list(former.values()))


def _is_left(name: str) -> bool:
    """What a forward does not read."""
    return not name.startswith(("parameter/", "buffer/"))
