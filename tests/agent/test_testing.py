"""The public helper for other people's tests."""

import math
import os
import subprocess
import sys
import time

import pytest
import torch

import caboose
import caboose.testing


def train(model: torch.nn.Module, steps: int) -> list[float]:
    """A program under test; it knows nothing of the recording."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with caboose.attach(model, optimizer, job="mine") as monitor:
        for _ in range(steps):
            loss = model(torch.randn(5, 4)).pow(2).mean()
            loss.backward()
            optimizer.step()
            monitor.step(loss)
            losses.append(loss.item())
        monitor.validation(0.5)
    return losses


def test_a_program_is_recorded_from_hello_to_bye(network: torch.nn.Module) -> None:
    with caboose.testing.recording() as record:
        losses = train(network, 3)
    assert record.hello.job == "mine"
    assert [step.loss for step in record.steps] == pytest.approx(losses, rel=1e-6)
    assert record.steps == record.steps_of(rank=0)
    assert record.steps_of(rank=1) == []
    assert [(event.kind, event.fields) for event in record.events] == [("validation", {"loss": 0.5})]
    assert [bye.step for bye in record.byes] == [3]


def test_steps_can_be_waited_for_while_the_program_runs(network: torch.nn.Module) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with caboose.testing.recording() as record:
        with pytest.raises(LookupError, match=r"was caboose\.attach called inside the recording"):
            _ = record.hello
        with caboose.attach(network, optimizer) as monitor:
            monitor.step(1.0)
            assert [step.loss for step in record.wait_for_steps(1)] == [1.0]
            with pytest.raises(TimeoutError, match=r"1 of 2 step reports came within 0\.05 s"):
                record.wait_for_steps(2, timeout=0.05)
            monitor.step(math.inf)
            assert len(record.wait_for_steps(2)) == 2


def test_the_environment_is_led_here_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CABOOSE_ENDPOINT", "tcp://127.0.0.1:1")
    monkeypatch.setenv("CABOOSE_DISABLED", "1")
    monkeypatch.setenv("CABOOSE_SERVER_KEY", "x" * 40)
    before = dict(os.environ)
    with caboose.testing.recording() as record:
        assert os.environ["CABOOSE_ENDPOINT"] == record.endpoint
        assert not {"CABOOSE_DISABLED", "CABOOSE_SERVER_KEY"} & os.environ.keys()
    assert dict(os.environ) == before


def test_the_end_of_the_block_does_not_wait_for_an_agent_that_nobody_closes(network: torch.nn.Module) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with caboose.testing.recording() as record:
        monitor = caboose.attach(network, optimizer)
        monitor.step(1.0)
        record.wait_for_steps(1)
        start = time.monotonic()
    assert time.monotonic() - start < 4.0
    monitor.close()
    assert [step.loss for step in record.steps] == [1.0]


def test_it_needs_no_torch() -> None:
    program = "import sys; sys.modules['torch'] = None; import caboose.testing\nwith caboose.testing.recording(): pass"
    subprocess.run([sys.executable, "-c", program], timeout=30, check=True)
