"""What a problem is attributed to changes what is done: the rate, the data, or the machine."""

import math
from typing import Any

import numpy as np
import pytest

from caboose_daemon.out.api import json_shapes
from caboose_daemon.rollback.attribution import attribute, cordons
from caboose_wire import Ack, Holdings
from support.guarded import GROUP, Guarded, guarded

NAN = float("nan")
ALL = "loss_spike divergence non_finite lr_schedule bad_batch replica_desync"


def jumped(run: Guarded, *, steps: int = 30, lr: float = 0.05) -> Guarded:
    """The schedule raises the rate 50 times, and the loss stays up."""
    run.meanwhile(lr=(0.001,)).healthy(100).meanwhile(lr=(lr,))
    return run.losses(*6.0 * (1.0 + 0.01 * np.random.default_rng(1).standard_normal(steps)))


def test_a_jump_of_the_schedule_is_undone_with_the_first_rollback() -> None:
    run = jumped(guarded(about=ALL))

    decision = run.committed[0]
    assert decision.attribution is not None
    assert decision.attribution.to == "schedule_jump"
    assert decision.lr_scale == pytest.approx(0.001 / 0.05)
    assert run.commands[0].lr_scale == pytest.approx(0.02)
    assert "jumped 50x (0.001 to 0.05) at step 101" in "; ".join(decision.why)
    assert "fix the schedule" in "; ".join(decision.why)


def test_a_rate_that_left_its_schedule_is_set_back_by_the_ranks_and_not_scaled_as_well() -> None:
    run = guarded(about=ALL)
    plain = run.holdings

    def off_schedule(rank: int) -> Holdings:
        fields: dict[str, Any] = {name: getattr(plain(rank), name) for name in Holdings.__struct_fields__}
        return Holdings(**{**fields, "is_off_schedule": True})

    run.holdings = off_schedule  # type: ignore[method-assign]
    jumped(run)

    decision = run.committed[0]
    assert decision.lr_scale == 1.0
    assert "set back to the schedule" in "; ".join(decision.why)


def test_data_are_not_skipped_for_a_jump_of_the_schedule_that_comes_back() -> None:
    run = jumped(guarded(about=ALL), steps=12).healthy(0)
    run.losses(*6.0 * (1.0 + 0.01 * np.random.default_rng(2).standard_normal(60)))

    second = run.committed[1]
    assert (second.rung, second.skip) == (2, 0)
    assert second.lr_scale <= 0.5


def test_a_rank_that_is_the_first_to_break_twice_is_to_be_cordoned() -> None:
    run = guarded(ranks=4, about=ALL).healthy(100)
    run.nan_loss(2, at=101, spreads=True).losses(*[NAN] * 8).healthy(60)
    assert cordons(run.job) == []

    run.nan_loss(2, at=run.step + 1, spreads=True).losses(*[NAN] * 8).healthy(5)

    (cordon,) = cordons(run.job)
    host = run.job.attempt.host_of(2)  # type: ignore[union-attr]
    assert (cordon.rank, cordon.host, cordon.num_times) == (2, host, 2)
    second = run.committed[1]
    assert second.cordon == cordon
    assert any(line.startswith(f"cordon host {host} (rank 2)") for line in second.explain())
    shape = json_shapes.rollback(run.job, 3, run.now)
    assert shape["cordons"] == [{**json_shapes.plain(cordon), "text": cordon.text}]


def test_ranks_that_break_in_turn_are_no_bad_machine() -> None:
    run = guarded(ranks=4, about=ALL).healthy(100)
    for rank in (1, 3):
        run.nan_loss(rank, at=run.step + 1, spreads=True).losses(*[NAN] * 8).healthy(60)

    assert cordons(run.job) == []


def test_what_all_ranks_see_at_once_is_attributed_to_nothing() -> None:
    run = guarded(about=ALL).healthy(100).losses(*[NAN] * 8)

    incident = run.job.incidents.find(1)
    assert attribute(run.job, incident, 101) is None
    assert attribute(run.job, None, 101) is None


def test_a_warning_of_the_ranks_before_the_boundary_is_in_the_explanation() -> None:
    run = guarded().healthy(100)
    run.losses(*[NAN] * 3)
    decision = run.decisions[0]
    run.says(1, Ack(command=decision.command, outcome="accepted", detail="the schedule will do so again", step=103))
    run.core.pass_time(run.now)

    assert "before the boundary: the schedule will do so again" in run.decisions[0].explain()
    assert run.decisions[0].group == GROUP
    assert math.isinf(run.decisions[0].cost.waiting)  # type: ignore[union-attr]
