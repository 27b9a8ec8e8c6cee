"""Chaos in small: the schedule covers every fault, the oracle sees faults, and a minute of one seed passes."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caboose_wire import Command, Heartbeat, encode
from chaos.campaign import NAMES, Campaign
from chaos.journal import Journal
from chaos.oracle import Evidence, judge
from chaos.plan import INTENTS, plan
from chaos.proxy import Framing
from chaos.ranks import Life
from chaos.reference import Reference
from support.zmtp import frame

SEED = 0
LOSSES = ["0x1.8p+0", "0x1.4p+0", "0x1.0p+0", "0x1.cp-1"]


def test_every_fault_meets_every_intent_within_one_seed_and_an_episode_is_always_the_same() -> None:
    count = len(NAMES) * len(INTENTS)
    episodes = [plan(SEED, number, NAMES) for number in range(count)]
    assert Counter((e.fault, e.intent) for e in episodes) == {
        (name, intent): INTENTS.count(intent) for name in NAMES for intent in set(INTENTS)
    }
    assert [plan(SEED, number, NAMES) for number in range(count)] == episodes


def test_the_network_knows_where_messages_end_however_they_are_cut() -> None:
    messages = [encode(Heartbeat(step=step)) for step in (1, 2)]
    raw = b"".join(frame(body, has_more=i == 0) for frames in messages for i, body in enumerate(frames))
    framing = Framing()
    found = [item for i in range(0, len(raw), 7) for item in framing.feed(raw[i : i + 7])]
    assert [frames for _, frames in found] == messages
    assert b"".join(part for part, _ in found) == raw


def evidence(**changes: Any) -> Evidence:
    """An episode without a fault in it: a rollback at step 3, as the daemon said."""
    lives = [
        Life(rank, 0, pid=1, losses=list(LOSSES), rollbacks=[3], ended=10.0, exited=10.5, answers=[_done()])
        for rank in (0, 1)
    ]
    command = Command(number=1, kind="rollback", group="g", boundary=3, target=1)
    sound: dict[str, Any] = {
        "episode": replace(plan(SEED, 0, NAMES), fault="network_cut", intent="commit", exit_code=0),
        "code": 0,
        "lives": lives,
        "commands": [command],
        "journal": Journal("ok", {"chaos-1"}, [], 0),
        "marks": ["chaos-1"],
        "accepted": [],
        "errors": {},
        "deaths": [],
        "left": [],
        "daemon_log": "",
        "bare_exit_seconds": 0.3,
    }
    return Evidence(**{**sound, **changes})


def _done() -> dict[str, Any]:
    return {"command": 1, "outcome": "done", "detail": "", "step": 3}


class Answers(Reference):
    """Reference ranks that have answered already."""

    def __init__(self) -> None:
        super().__init__([])

    def losses(self, request: dict[str, Any]) -> list[list[str]]:
        assert request["actions"] == [{"boundary": 3, "target": 1, "skip": 0, "lr_scale": 1.0}]
        return [LOSSES, LOSSES]


def lives(**changes: Any) -> list[Life]:
    """The lives of a sound episode, with rank 1 changed."""
    zero, one = evidence().lives
    return [zero, replace(one, **changes)]


def test_a_sound_episode_passes() -> None:
    verdict = judge(evidence(), Answers())
    assert (verdict.problems, verdict.num_committed, verdict.num_aborted) == ([], 1, 0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"lives": lives(losses=[*LOSSES[:3], "0x1.cp-2"])}, "the loss of step 4 is 0x1.cp-2"),
        ({"commands": []}, "without a command of the daemon"),
        ({"lives": lives(losses=LOSSES[:3])}, "ranks differ"),
        ({"lives": lives(ended=None)}, "not all ranks came to the end"),
        ({"lives": lives(exited=11.5)}, "1.20 s later"),
        ({"code": 1}, "the run ended with 1"),
        ({"code": None}, "the run ended with None"),
        ({"left": [4711]}, "left ranks behind"),
        ({"deaths": ["exit code -6"]}, "the daemon ended by itself"),
        ({"errors": {"step": 1.0}}, "internal errors"),
        ({"daemon_log": "Traceback (most recent call last)"}, "traceback"),
        ({"marks": ["chaos-1", "chaos-2"]}, "1 of 2 acknowledged writes are lost"),
        ({"accepted": [4]}, "accepted rollbacks are not in the journal"),
        ({"journal": Journal("row 3 missing", {"chaos-1"}, [], 0)}, "the journal is damaged"),
    ],
)
def test_the_oracle_sees_what_is_wrong(changes: dict[str, Any], problem: str) -> None:
    assert [found for found in judge(evidence(**changes), Answers()).problems if problem in found]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_minute_of_one_seed_passes(tmp_path: Path) -> None:
    campaign = Campaign(SEED, tmp_path, print)
    campaign.run(minutes=1.0)
    assert campaign.results
    assert [result.problems for result in campaign.results if not result.is_passed] == []
