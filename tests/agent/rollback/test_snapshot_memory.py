"""What snapshots take of the host's memory: said at attach, with the sum, before it is too much."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

import caboose
from caboose.rollback import host_memory
from caboose.rollback.ring import Ring
from caboose.rollback.training_state import TrainingState
from support.collector import Collector


def test_no_more_memory_is_asked_for_than_the_host_has_and_the_sum_is_shown() -> None:
    model = torch.nn.Linear(1000, 1000, bias=False)
    state = TrainingState(model, [torch.optim.AdamW(model.parameters())])
    with pytest.raises(ValueError, match=r"0\.012 GB a snapshot x 4 slots x 8 ranks on this host = 0\.384 GB") as error:
        Ring(state, max_host_gb=0.3, num_local_ranks=8)
    assert all(way in str(error.value) for way in ("keep", "max_host_gb", "dedupe"))
    Ring(state, max_host_gb=0.4, num_local_ranks=8).close()


@pytest.mark.parametrize(
    ("name", "options", "states"),
    [
        ("SGD", {}, 0),
        ("SGD", {"momentum": 0.9}, 1),
        ("AdamW", {}, 2),
        ("Adam", {"amsgrad": True}, 3),
        ("RMSprop", {}, 1),
    ],
)
def test_the_estimate_is_what_the_snapshot_then_takes(name: str, options: dict[str, Any], states: int) -> None:
    model = torch.nn.Linear(256, 256)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)
    ring = Ring(TrainingState(model, [optimizer]))
    try:
        estimate = ring.num_bytes
        assert estimate == (1 + states) * 4 * (256 * 256 + 256)
        model(torch.ones(1, 256)).sum().backward()
        optimizer.step()
        assert ring.take(1, 1)
        assert ring.num_bytes == pytest.approx(estimate, rel=0.01)
    finally:
        ring.close()


def test_a_state_that_outgrows_the_limit_switches_the_ring_off_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Hungry(torch.optim.SGD):
        """Keeps more than its class lets on."""

    Hungry.__name__ = "SGD"
    model = torch.nn.Linear(100, 100, bias=False)
    optimizer = Hungry(model.parameters(), lr=0.1)
    ring = Ring(TrainingState(model, [optimizer]), max_host_gb=0.0002)
    optimizer.state[model.weight]["memory"] = torch.zeros(10_000)
    with caplog.at_level(logging.WARNING, logger="caboose"):
        assert not ring.take(5, 5)
    assert "above the limit of 0.0002 GB" in caplog.text
    assert not ring.is_due(5)
    assert ring.held == ()
    assert "no snapshots are held" in ring.why_not(5)
    ring.close()


def test_available_memory_is_some_and_not_more_than_there_is() -> None:
    assert 2**20 < host_memory.available_bytes() < 2**50


class Averages:
    """Averaged weights that are no module: a dictionary of tensors, in lists and deeper."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.shadow = [p.detach().clone() for p in model.parameters()]

    def state_dict(self) -> dict[str, Any]:
        return {"decay": 0.99, "inner": {"shadow": self.shadow}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = state["inner"]["shadow"]


EXTRAS: dict[str, Callable[[torch.nn.Module], Any]] = {"a module": AveragedModel, "any other": Averages}


@pytest.mark.parametrize("name", EXTRAS)
def test_what_extras_keep_is_counted_before_the_first_step(name: str) -> None:
    model = torch.nn.Linear(1000, 1000, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    state = TrainingState(model, [optimizer], extra=[EXTRAS[name](model)])
    says = r"0\.016 GB a snapshot \(0\.004 GB of it extra\) x 4 slots x 1 ranks on this host = 0\.064 GB"
    with pytest.raises(ValueError, match=says):
        Ring(state, max_host_gb=0.05)  # enough without them
    ring = Ring(state, max_host_gb=0.07)
    estimate = ring.num_bytes
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    assert ring.take(1, 1)
    assert (ring.num_bytes, ring.why_off) == (pytest.approx(estimate, rel=0.01), "")
    ring.close()


def test_an_extra_whose_state_cannot_be_kept_is_refused_at_attach(
    attach: Callable[..., caboose.Monitor], network: torch.nn.Module, listening: Collector
) -> None:
    class Sparse:
        def state_dict(self) -> dict[str, torch.Tensor]:
            return {"counts": torch.zeros(4).to_sparse()}

        def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
            pass

    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"extra=.*element 0, a Sparse.*extra/0/counts is a torch\.sparse_coo tensor"):
        attach(network, optimizer, endpoint=listening.endpoint, rollback="auto", extra=[Sparse()])
