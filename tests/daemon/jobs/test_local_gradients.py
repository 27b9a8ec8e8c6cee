"""Where the optimizer reduces gradients, each rank's norms are its own: the norm of the whole is not known."""

import numpy as np
import pytest

from support.ranks import LAYERS, a_hello, a_report
from support.recorder import Core


def a_run(scales: list[tuple[float, float]], num_layers: int = len(LAYERS)) -> Core:
    """Two ranks that report all layers, each with its own scale, step by step."""
    core = Core()
    for rank in range(2):
        core.say(b"%d" % rank, a_hello(rank=rank, world=2, incarnation=f"incarnation-{rank}"), 0.0)
    for step, pair in enumerate(scales, 1):
        for rank, scale in enumerate(pair):
            norms = scale * np.ones(num_layers, dtype=np.float32)
            core.say(b"%d" % rank, a_report(step, arrays={"grad_norm": norms}), float(step))
        core.pass_time(float(step))
    return core


def norms(core: Core) -> list[float | None]:
    return [summary.grad_norm for summary in core.state.jobs["train"].recent]


def test_norms_that_differ_from_the_start_have_no_total_and_the_reason_is_shown() -> None:
    core = a_run([(1.0, 1.3)] * 10)

    assert norms(core) == [None] * 10
    assert "ZeRO" in core.state.jobs["train"].blind["gradient_norm"]


@pytest.mark.parametrize("factor", [1.0, 1.0001])
def test_norms_that_are_equal_or_rounded_differently_are_the_whole(factor: float) -> None:
    core = a_run([(1.0, factor)] * 10)

    assert norms(core) == pytest.approx([factor * np.sqrt(len(LAYERS))] * 10)
    assert "gradient_norm" not in core.state.jobs["train"].blind


def test_a_rank_that_differs_later_does_not_hide_the_norm() -> None:
    core = a_run([(1.0, 1.0)] * 50 + [(1.0, 40.0)] * 5)

    assert norms(core)[-1] == pytest.approx(40.0 * np.sqrt(len(LAYERS)))
    assert "gradient_norm" not in core.state.jobs["train"].blind


def test_batches_that_were_equal_for_long_are_found_out() -> None:
    core = a_run([(1.0, 1.0)] * 60 + [(1.0, 1.3)] * 60)

    assert norms(core)[-1] is None
    assert "gradient_norm" in core.state.jobs["train"].blind


def test_one_step_that_differs_at_the_start_does_not_decide() -> None:
    core = a_run([(1.0, 2.0)] + [(1.0, 1.0)] * 5)

    assert norms(core)[0] is None
    assert None not in norms(core)[1:]
