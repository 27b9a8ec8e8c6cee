"""The receiving loop rests after a turn that read all messages, so that ranks which report one by one share turns."""

import time
from pathlib import Path
from typing import Any

import pytest

from caboose_daemon.app.loop import REST_SECONDS
from caboose_daemon.jobs.pipeline import Pipeline
from support.processes import wait_until
from support.ranks import a_report, simulated_ranks
from support.served import served

NUM = 200


def test_turns_are_as_few_as_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[float] = []
    advance = Pipeline.advance

    def counted(*arguments: Any, **more: Any) -> None:
        turns.append(time.monotonic())
        advance(*arguments, **more)

    monkeypatch.setattr(Pipeline, "advance", counted)
    with served(tmp_path) as daemon, simulated_ranks(daemon.endpoint, 1, {"job": "gpt"}) as (rank,):
        assert wait_until(lambda: "gpt" in daemon.state.jobs, 10)
        began, before = time.monotonic(), len(turns)
        for step in range(1, NUM + 1):
            rank.send(a_report(step))
            time.sleep(0.0005)
        assert wait_until(lambda: daemon.state.jobs["gpt"].num_steps == NUM, 10)
        seconds = time.monotonic() - began
    # A turn in which messages were read is followed by a rest; one that finds none is not, and takes its time in poll.
    assert len(turns) - before <= 2 * seconds / REST_SECONDS
    assert len(turns) - before < 0.7 * NUM
