"""What the agent makes the device do: so many operations a step, no host sync, no large temporary."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import caboose
from caboose_drills.transformer import Transformer

SYNCS = ("aten._local_scalar_dense", "aten.is_nonzero", "aten.nonzero", "aten.equal", "aten.item")
VOCABULARY, LENGTH = 64, 16


class Watch(TorchDispatchMode):
    """Counts operations, host syncs and the bytes of what operations put out."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.operations[str(func).rpartition(".")[0]] += 1
        if isinstance(output, torch.Tensor) and not func.is_view:
            self.largest = max(self.largest, output.untyped_storage().nbytes())
        return output

    @property
    def num_syncs(self) -> int:
        return sum(self.operations[name] for name in SYNCS)


def train(attach: Callable[..., caboose.Monitor] | None, steps: int, **options: Any) -> list[Watch]:
    """Operations of each step of a small transformer of 54 tensors."""
    torch.manual_seed(0)
    model = Transformer(vocabulary=VOCABULARY, length=LENGTH, width=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    monitor = attach(model, optimizer, endpoint="tcp://127.0.0.1:9", **options) if attach else caboose.Monitor(None)
    tokens = torch.randint(VOCABULARY, (4, LENGTH))
    seen = []
    for _ in range(steps):
        with Watch() as watch:
            loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss)
        seen.append(watch)
    return seen


def test_a_step_between_samples_takes_five_operations_whatever_the_number_of_layers(
    attach: Callable[..., caboose.Monitor],
) -> None:
    bare = train(None, 3)
    watched = train(attach, 3)
    added = watched[-1].operations - bare[-1].operations
    assert dict(added) == {
        "aten._foreach_norm": 1,
        "aten.stack": 1,
        "aten.detach": 1,
        "aten.view": 1,
        "aten.cat": 1,
    }


def test_a_step_without_norms_reads_its_loss_which_is_on_the_host(
    attach: Callable[..., caboose.Monitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caboose.governor.Governor.takes_norms", lambda *_: False)
    bare = train(None, 4)
    watched = train(attach, 4)
    added = watched[-1].operations - bare[-1].operations
    assert dict(added) == {"aten._local_scalar_dense": 1}


def test_with_hunting_on_the_random_state_is_kept_as_well_and_nothing_of_the_batch_is_copied(
    attach: Callable[..., caboose.Monitor],
) -> None:
    watched = train(attach, 3)
    hunting = train(attach, 3, hunt=True)
    added = hunting[-1].operations - watched[-1].operations
    assert dict(added) == {"aten.detach": 1}, "of the generator's few kilobytes, on the host"
    assert hunting[-1].num_syncs == watched[-1].num_syncs
    assert hunting[-1].largest == watched[-1].largest


@pytest.mark.parametrize("sample_every", [1, 50])
def test_nothing_waits_for_a_device(attach: Callable[..., caboose.Monitor], sample_every: int) -> None:
    bare = train(None, 10)
    watched = train(attach, 10, sampling=caboose.Sampling(sample_every, overhead_budget=1.0))
    assert sum(w.num_syncs for w in watched) == sum(b.num_syncs for b in bare)


def test_a_sampled_step_takes_a_known_number_of_operations_and_small_temporaries(
    attach: Callable[..., caboose.Monitor],
) -> None:
    bare = train(None, 3)[-1]
    watched = train(attach, 3, sampling=caboose.Sampling(1, overhead_budget=1.0))[-1]
    num_added = watched.operations.total() - bare.operations.total()
    assert num_added < 1200, "about ten for each of 54 layers and 36 modules, and a few for all"
    assert watched.largest <= max(bare.largest, 4 * 2**20)
