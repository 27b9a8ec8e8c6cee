"""The projection in a terminal: every line has its mark, and the costs stand below."""

import numpy as np

from caboose_daemon.cli.projection_chart import BAND, LEVEL, LIKELY, PAST, TALL, chart
from caboose_daemon.out.api import json_shapes
from caboose_daemon.rollback.requests import ManualRequest
from support.guarded import Guarded, guarded


def asked(run: Guarded) -> dict[str, object]:
    """A dry run of a rollback, as the API gives it."""
    return json_shapes.decision(run.core.requests.ask(run.job, ManualRequest(is_dry=True), run.now))


def test_a_dry_run_draws_the_loss_its_level_and_both_ways_back() -> None:
    run = guarded(rollback={"mode": "advise"}).healthy(100)
    run.losses(*2.0 + 3.0 * np.exp(-np.arange(12) / 30.0))

    decision = asked(run)
    lines = list(chart(decision))

    picture = "\n".join(lines[1 : TALL + 1])
    assert len(lines) == TALL + 4
    assert all(mark in picture for mark in (PAST, LEVEL, LIKELY, BAND))
    assert decision["cost"] is not None
    assert "steps of training lost" in lines[-1]
    assert "by going back" in lines[-1]


def test_a_healthy_run_has_no_projection() -> None:
    assert list(chart(asked(guarded().healthy(50)))) == []
