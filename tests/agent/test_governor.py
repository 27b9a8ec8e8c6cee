"""The agent keeps to its budget, and says what it costs."""

import time
from collections.abc import Callable

import pytest
import torch

import caboose
from caboose.governor import MAX_NORM_EVERY, MAX_STRETCH, Governor
from caboose.observe.layers import cut
from caboose_wire import StepReport
from support.collector import Collector
from support.processes import wait_until


def run(governor: Governor, steps: int, agent: float, sampled: float) -> None:
    for step in range(steps):
        if governor.is_sampled(step):
            governor.account(sampled, 1.0, was_sampled=True)
        else:
            has_norms = governor.takes_norms(step)
            governor.account(agent if has_norms else 0.0, 1.0, was_sampled=False, had_norms=has_norms)


def test_a_sampled_step_alone_is_no_breach() -> None:
    governor = Governor(50, 0.01)
    run(governor, 500, agent=0.003, sampled=0.2)
    assert governor.sample_every == 50
    assert governor.share == pytest.approx(0.00694)


def test_over_budget_it_looks_closely_less_often_and_later_again() -> None:
    governor = Governor(10, 0.01)
    run(governor, 1000, agent=0.001, sampled=0.3)
    assert governor.sample_every == 80, "0.3 / 80 and the plain steps are below what it aims at"
    run(governor, 8000, agent=0.001, sampled=0.001)
    assert governor.sample_every == 10


def test_norms_that_cost_too_much_on_every_step_are_taken_less_often() -> None:
    governor = Governor(50, 0.01)
    run(governor, 2000, agent=0.022, sampled=0.03)
    assert (governor.norm_every, governor.sample_every) == (4, 50)
    assert governor.share < 0.01
    run(governor, 2000, agent=0.0001, sampled=0.03)
    assert governor.norm_every == 1


def test_a_budget_of_the_whole_step_is_no_limit() -> None:
    governor = Governor(1, 1.0)
    run(governor, 1000, agent=3.0, sampled=3.0)
    assert (governor.sample_every, governor.norm_every) == (1, 1)


def test_the_cadences_have_an_end() -> None:
    governor = Governor(1, 0.01)
    run(governor, 20_000, agent=0.5, sampled=0.5)
    assert (governor.sample_every, governor.norm_every) == (MAX_STRETCH, MAX_NORM_EVERY)


def test_sampled_steps_of_a_stretched_rank_are_among_the_others() -> None:
    calm, busy = Governor(10, 0.01), Governor(10, 0.01)
    run(busy, 1000, agent=0.001, sampled=0.3)
    assert {s for s in range(2000) if busy.is_sampled(s)} <= {s for s in range(2000) if calm.is_sampled(s)}


def test_an_expensive_agent_slows_itself_down(
    attach: Callable[..., caboose.Monitor], listening: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caboose.observe.samples.Samples.add_to", lambda *_: time.sleep(0.02))
    model = torch.nn.Linear(2, 2)
    monitor = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), endpoint=listening.endpoint, sampling=2)
    began = time.monotonic()
    while time.monotonic() - began < 3.0:  # it judges by time
        time.sleep(0.001)
        monitor.step(1.0)
    reports = listening.wait_for(StepReport, 40)
    assert reports[0].sample_every == 2
    assert wait_until(lambda: listening.wait_for(StepReport)[-1].sample_every > 8, 5)
    assert monitor.overhead > 0.01


@pytest.mark.parametrize(
    ("sizes", "parts", "expected"),
    [
        ([1, 1, 1, 1], 2, [(0, 2), (2, 4)]),
        ([100, 1, 1, 1], 2, [(0, 1), (1, 4)]),
        ([1, 1, 1, 100], 2, [(0, 3), (3, 4)]),
        ([5], 3, None),
        ([], 2, None),
    ],
)
def test_work_is_cut_into_parts_of_about_equal_size(
    sizes: list[int], parts: int, expected: list[tuple[int, int]] | None
) -> None:
    found = cut(sizes, parts)
    assert len(found) == parts
    assert [row for first, last in found for row in range(first, last)] == list(range(len(sizes)))
    if expected is not None:
        assert found == expected
