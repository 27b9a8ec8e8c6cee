"""Whatever a peer sends: it is applied, held back, or counted under a reason, and nothing is raised."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caboose_daemon.ingest import receiver, strangers
from caboose_daemon.ingest.receiver import ASK_AGAIN_SECONDS, FORGET_SECONDS, Reply
from caboose_daemon.ingest.strangers import MAX_HELD_PER_PEER
from caboose_wire import Ack, Bye, Command, Event, Heartbeat, HelloRequest, Layer, Refused, WireError, encode
from caboose_wire.errors import REASONS
from support.ranks import LAYERS, a_hello, a_report
from support.record_frames import MESSAGES
from support.recorder import Core


def a_job(**changes: Any) -> Core:
    """A core with the two ranks of one job, as peers r0 and r1."""
    core = Core()
    for rank in range(2):
        core.say(f"r{rank}".encode(), a_hello(rank=rank, **changes), 0.0)
    return core


def kinds(replies: list[Reply]) -> list[str]:
    return [message.reason if isinstance(message, Refused) else type(message).__name__ for _, message in replies]


# Introductions


def test_an_unknown_peer_is_asked_for_its_hello_and_its_reports_are_applied_afterwards() -> None:
    core = Core()
    assert kinds(core.say(b"r0", a_report(1), 0.0)) == ["HelloRequest"]
    core.say(b"r0", a_report(2), 0.1)
    core.say(b"r0", Event(attempt=0, step=2, time=1.0, kind="data_switch"), 0.2)
    assert not core.state.jobs

    assert core.say(b"r0", a_hello(rank=0, world=1), 0.3) == []
    core.pass_time(0.4)

    assert [summary.step for summary in core.sink.steps] == [1, 2]
    assert [event.kind for event in core.sink.events] == ["data_switch"]
    assert not core.state.num_refused


def test_an_unknown_peer_is_not_asked_at_every_message() -> None:
    core = Core()
    asked = [now for now in np.arange(0.0, 3 * ASK_AGAIN_SECONDS, 0.1) if core.say(b"r0", a_report(1), float(now))]

    assert len(asked) == 3


def test_a_validation_that_every_rank_reports_is_one() -> None:
    core = a_job()
    for step, losses in ((2, (0.5, 0.5)), (4, (0.5, 0.5)), (6, (0.4, 0.6)), (8, (float("nan"), float("nan")))):
        for rank, loss in enumerate(losses):
            event = Event(attempt=0, step=step, time=1.0 + rank, kind="validation", fields={"loss": loss})
            core.say(f"r{rank}".encode(), event, 0.5)

    assert [event.step for event in core.sink.events] == [2, 4, 6, 6, 8]


def test_a_goodbye_that_overtakes_the_hello_is_applied_after_it() -> None:
    core = Core()
    core.say(b"r0", Bye(step=1, error="boom"), 0.0)

    core.say(b"r0", a_hello(rank=0, world=1), 0.1)

    assert core.state.jobs["train"].state == "crashed"


def test_a_hello_that_contradicts_itself_is_refused_and_leaves_no_job_behind() -> None:
    core = Core()

    assert kinds(core.say(b"r9", a_hello(rank=9, world=2), 0.0)) == ["malformed"]

    assert not core.state.jobs
    assert core.state.num_refused["malformed"] == 1


# Reports


def test_gaps_in_the_sequence_are_counted_as_missed_reports() -> None:
    core = a_job()
    for seq in (1, 2, 5, 6, 10):
        core.say(b"r0", a_report(seq, seq=seq), 1.0)

    attempt = core.state.jobs["train"].attempt
    assert attempt is not None
    assert attempt.members[0].num_missed == 5


def test_what_an_agent_dropped_is_shown_as_it_says() -> None:
    core = a_job()
    core.say(b"r0", a_report(1, num_dropped=3), 1.0)
    core.say(b"r1", Heartbeat(step=1, num_dropped=8, num_failures=2, state="disabled"), 1.0)

    attempt = core.state.jobs["train"].attempt
    assert attempt is not None
    assert attempt.members[0].num_dropped == 3
    member = attempt.members[1]
    assert (member.num_dropped, member.num_failures, member.agent_state) == (8, 2, "disabled")


BAD_ARRAYS = {
    "too few": {"arrays": {"grad_norm": np.ones(3, dtype=np.float32)}},
    "too many": {"arrays": {"grad_norm": np.ones(5, dtype=np.float32)}},
    "local ones": {"arrays": {"local_grad_norm": np.ones(5, dtype=np.float32)}},
    "too many for their slice": {
        "arrays": {"grad_norm": np.ones(4, dtype=np.float32)},
        "slices": {"grad_norm": (0, 2)},
    },
    "a slice without stride": {"arrays": {"grad_norm": np.ones(4, dtype=np.float32)}, "slices": {"grad_norm": (0, 0)}},
}


@pytest.mark.parametrize("changes", BAD_ARRAYS.values(), ids=list(BAD_ARRAYS))
def test_norms_that_do_not_fit_the_layers_are_refused_and_the_peer_is_kept(changes: dict[str, Any]) -> None:
    core = a_job()

    assert kinds(core.say(b"r0", a_report(1, **changes), 1.0)) == ["layer_count"]
    assert core.state.num_refused == {"layer_count": 1}

    assert core.say(b"r0", a_report(2), 1.0) == []
    assert core.say(b"r1", a_report(2), 1.0) == []
    core.pass_time(1.1)
    assert [summary.step for summary in core.sink.steps] == [2]


def test_a_rank_with_another_layer_table_is_refused_and_stops_nobody() -> None:
    core = a_job()
    other = tuple(Layer(name=f"other{i}", numel=1) for i in range(7))
    core.say(b"x", a_hello(job="odd", rank=0, world=2), 0.0)
    core.say(b"y", a_hello(job="odd", rank=1, world=2, layers=other), 0.0)

    assert core.say(b"x", a_report(1), 1.0) == []
    replies = core.say(b"y", a_report(1, arrays={"grad_norm": np.ones(7, dtype=np.float32)}), 1.0)
    core.pass_time(10.0)

    assert kinds(replies) == ["layer_count"]
    assert core.state.jobs["odd"].num_steps == 1


def test_a_layer_table_that_changes_while_a_step_is_open_stops_nobody() -> None:
    core = Core()
    core.say(b"r1", a_hello(rank=1, layers=LAYERS[:2]), 0.0)
    core.say(b"r1", a_report(1, arrays={"grad_norm": np.ones(2, dtype=np.float32)}), 0.1)

    core.say(b"r0", a_hello(rank=0), 0.2)
    core.say(b"r0", a_report(1), 0.3)
    core.pass_time(1.0)

    assert [summary.step for summary in core.sink.steps] == [1]


def test_what_only_the_daemon_may_say_is_refused() -> None:
    core = a_job()

    replies = core.say(b"r0", Command(number=1, kind="stop", group="12345678"), 1.0)

    assert kinds(replies) == ["type"]
    assert kinds(core.say(b"r0", HelloRequest(), 1.0)) == ["type"]


def test_accepted_messages_are_counted_by_type() -> None:
    core = a_job()
    core.say(b"r0", a_report(1), 1.0)
    core.say(
        b"r0",
        Heartbeat(
            step=1,
        ),
        1.0,
    )
    core.say(b"r0", Ack(command=1, outcome="done"), 1.0)

    assert core.state.num_frames == {"Hello": 2, "StepReport": 1, "Heartbeat": 1, "Ack": 1}


# Garbage

GARBAGE = {
    "nothing": ([], "truncated"),
    "one frame": ([b"hello"], "truncated"),
    "text": ([b"GET / HTTP/1.1", b"Host: x"], "malformed"),
    "another version": ([b"\x07\x02", b"\x80"], "version"),
    "another type": ([b"\x01\x2a", b"\x80"], "type"),
    "an empty report": ([b"\x01\x02", b"\x80"], "malformed"),
    "a huge header": ([b"\x01\x02", bytes(65 * 1024)], "oversize"),
}


@pytest.mark.parametrize(("frames", "reason"), GARBAGE.values(), ids=list(GARBAGE))
def test_garbage_is_counted_by_its_reason_and_answered(frames: list[bytes], reason: str) -> None:
    core = a_job()

    assert kinds(core.receiver.handle(b"r0", frames, 1.0)) == [reason]

    assert core.state.num_refused == {reason: 1}
    assert core.say(b"r0", a_report(1), 1.0) == [], "the peer is kept"


valid = st.sampled_from([encode(message) for message in MESSAGES] + [encode(a_hello()), encode(a_report(3))])
damaged = st.lists(st.binary(max_size=30), max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), valid | damaged, st.floats(0, 5)), max_size=25))
def test_no_sequence_of_messages_raises_and_every_refusal_has_a_known_reason(
    said: list[tuple[bytes, list[bytes], float]],
) -> None:
    core = Core()
    now = 0.0
    for peer, frames, seconds in said:
        now += seconds
        for _, message in core.receiver.handle(peer, frames, now):
            encode(message)
        core.pass_time(now)

    assert set(core.state.num_refused) <= set(REASONS)


# Bounds


def test_what_an_unknown_peer_sends_is_held_within_bounds_oldest_first() -> None:
    core = Core()
    for step in range(1, MAX_HELD_PER_PEER + 11):
        core.say(b"r0", a_report(step), 0.0)
    assert core.state.num_refused["unknown_peer"] == 10

    core.say(b"r0", a_hello(rank=0, world=1), 0.1)
    core.pass_time(0.2)

    assert [core.sink.steps[0].step, len(core.sink.steps)] == [11, MAX_HELD_PER_PEER]


def test_all_that_is_held_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(map(len, encode(a_report(1))))
    monkeypatch.setattr(strangers, "MAX_HELD_BYTES", 3 * size)
    core = Core()
    for step in range(1, 6):
        core.say(b"r0", a_report(step), 0.0)
    assert core.state.num_refused["unknown_peer"] == 2

    core.say(b"r0", a_hello(rank=0, world=1), 0.1)
    core.say(b"r1", a_report(1), 0.1)

    assert core.state.num_refused["unknown_peer"] == 2, "what was released makes room"


def test_a_peer_that_talks_on_without_a_hello_does_not_use_up_what_others_may_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = sum(map(len, encode(a_report(1))))
    monkeypatch.setattr(strangers, "MAX_HELD_PER_PEER", 2)
    monkeypatch.setattr(strangers, "MAX_HELD_BYTES", 10 * size)
    core = Core()
    for _ in range(100):
        core.say(b"chatterbox", a_report(1), 0.0)
    refused = core.state.num_refused["unknown_peer"]

    core.say(b"r0", a_report(1), 0.0)

    assert core.state.num_refused["unknown_peer"] == refused == 98


def test_a_stranger_who_falls_silent_is_forgotten_and_what_it_sent_is_counted() -> None:
    core = Core()
    core.say(b"r0", a_report(1), 0.0)

    core.pass_time(FORGET_SECONDS + 1.0)

    assert core.state.num_refused["unknown_peer"] == 1


def test_beyond_its_capacity_the_daemon_refuses_more_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "MAX_PEERS", 2)
    core = a_job()

    assert kinds(core.say(b"r2", a_hello(job="other"), 1.0)) == ["capacity"]
    assert "other" not in core.state.jobs
    assert core.say(b"r0", a_report(1), 1.0) == []


def test_beyond_its_capacity_a_rank_that_waited_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    core = a_job()
    core.say(b"new", a_hello(rank=0, launch="run-2", incarnation="incarnation-new"), 0.5)
    monkeypatch.setattr(receiver, "MAX_PEERS", 2)
    core.say(b"new", Heartbeat(step=0), 39.0)

    assert kinds(core.pass_time(40.0))[-1] == "capacity"
    assert core.pass_time(41.0) == []


def test_beyond_its_capacity_the_daemon_refuses_more_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "MAX_PEERS", 2)
    core = Core()
    core.say(b"a", a_report(1), 0.0)
    core.say(b"b", a_report(1), 0.0)

    assert kinds(core.say(b"c", a_report(1), 0.0)) == ["capacity"]


def test_the_job_that_was_silent_for_longest_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "MAX_JOBS", 2)
    core = Core()
    core.say(b"a", a_hello(job="old", world=1), 0.0)
    core.say(b"b", a_hello(job="ended", world=1, incarnation="incarnation-b"), 5.0)
    core.say(
        b"b",
        Bye(
            step=0,
        ),
        95.0,
    )

    assert core.say(b"c", a_hello(job="new", world=1, incarnation="incarnation-c"), 100.0) == []

    assert set(core.state.jobs) == {"ended", "new"}
    assert kinds(core.say(b"a", a_report(1), 100.0)) == ["HelloRequest"], "its ranks have to introduce themselves again"


def test_jobs_that_are_alive_make_room_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "MAX_JOBS", 1)
    core = a_job()
    core.say(b"r1", Bye(step=0, error="boom"), 1.0)

    assert kinds(core.say(b"c", a_hello(job="new"), 1.0)) == ["capacity"]
    assert set(core.state.jobs) == {"train"}


def test_a_rank_may_wait_for_a_job_that_makes_room_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "MAX_JOBS", 1)
    core = a_job()
    core.say(b"new", a_hello(rank=0, launch="run-2", incarnation="incarnation-new"), 1.0)
    core.say(b"c", a_hello(job="other", world=1, incarnation="incarnation-c"), 50.0)
    core.say(b"new", Heartbeat(step=0), 50.5)

    assert kinds(core.pass_time(51.0)) == ["capacity"]


def test_peers_of_jobs_that_are_over_are_forgotten_after_a_while() -> None:
    core = a_job()
    for rank in range(2):
        core.say(
            f"r{rank}".encode(),
            Bye(
                step=0,
            ),
            1.0,
        )
    assert core.state.num_peers == 2

    core.pass_time(1.0)
    core.pass_time(2.0 + 2 * FORGET_SECONDS)

    assert core.state.num_peers == 0


def test_reasons_are_a_closed_set() -> None:
    assert WireError("oversize", "").reason in REASONS
    assert len(REASONS) == 17


def test_a_turn_costs_the_same_however_many_peers_wait() -> None:
    few, many = (seconds_of_turns(count) for count in (1, 600))
    assert many < 130 * few  # when every turn looked at every peer: 460 times


def seconds_of_turns(num_waiting: int) -> float:
    """CPU time of 200 turns within a tenth of a second, while peers wait for the name of a job that is alive."""
    core = Core()
    core.say(b"owner", a_hello(rank=0, world=1), 100.0)
    core.say(b"owner", Heartbeat(step=1), 100.0)
    for number in range(num_waiting):
        other = a_hello(rank=0, world=1, incarnation=f"incarnation-x{number}", launch=f"run-x{number}")
        core.say(b"other-%d" % number, other, 100.0 + number / 1000)
    began = time.thread_time()
    for turn in range(200):
        core.receiver.advance(101.0 + turn / 2000)
    return time.thread_time() - began


def test_a_relaunch_of_many_ranks_costs_as_much_as_it_has_ranks() -> None:
    few, many = (min(seconds_of_a_relaunch(world) for _ in range(3)) for world in (100, 800))
    assert many < 18 * few  # when each waiting rank looked at each old one: 35 times


def seconds_of_a_relaunch(world: int) -> float:
    """CPU time of 40 turns in which all ranks of a new launch wait for those of the old one."""
    core = Core()
    for rank in range(world):
        core.say(b"old-%d" % rank, a_hello(rank=rank, world=world), 100.0)
        core.say(b"old-%d" % rank, Heartbeat(step=1), 100.0 + rank / world)
    for rank in range(world):
        new = a_hello(rank=rank, world=world, incarnation=f"incarnation-x{rank}", launch="run-x")
        core.say(b"new-%d" % rank, new, 102.0)
    began = time.thread_time()
    for turn in range(40):
        core.receiver.advance(103.0 + turn / 10)
    return time.thread_time() - began
