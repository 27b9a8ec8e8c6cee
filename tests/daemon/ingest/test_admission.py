"""Who a Hello is: the same rank again, one more rank, a new launch, or somebody else under the same name."""

import msgspec

from caboose_daemon.ingest.admission import PATIENCE_SECONDS
from caboose_daemon.ingest.receiver import Reply
from caboose_wire import Bye, Heartbeat, Hello, Layer, Module, Refused, Terms
from support.ranks import a_hello, a_report
from support.recorder import Core

PROOF = "0123456789abcdef" * 4


def launched(core: Core, *, name: str = "a", now: float = 0.0, **changes: object) -> list[Hello]:
    """Two ranks introduce themselves as peers a0 and a1."""
    hellos = [a_hello(rank=rank, incarnation=f"incarnation-{name}{rank}", **changes) for rank in range(2)]
    for hello in hellos:
        core.say(f"{name}{hello.rank}".encode(), hello, now)
    return hellos


def beats(core: Core, name: str, now: float) -> None:
    for rank in range(2):
        core.say(
            f"{name}{rank}".encode(),
            Heartbeat(
                step=0,
            ),
            now,
        )


def reasons(replies: list[Reply]) -> list[str]:
    return [message.reason for _, message in replies if isinstance(message, Refused)]


def test_the_ranks_of_one_launch_share_an_attempt() -> None:
    core = Core()
    launched(core)

    (job,) = core.state.jobs.values()
    assert (job.num_attempts, job.num_live(job.last_seen), job.state) == (1, 2, "running")


def test_ranks_that_tell_the_same_of_the_model_share_one_table() -> None:
    """Ten thousand copies of it would be gigabytes."""
    core = Core()
    layers, modules = (Layer("fc.weight", 8), Layer("fc.bias", 2)), (Module("act", "ReLU"),)
    launched(core, world=3, layers=layers, modules=modules, facts={"num_parameters": 10})
    core.say(b"other", a_hello(rank=2, world=3, incarnation="incarnation-other", layers=layers[:1], modules=modules), 0)

    (job,) = core.state.jobs.values()
    assert job.attempt is not None
    first, second, other = (job.attempt.members[rank].hello for rank in range(3))
    assert first.layers is second.layers
    assert first.layers is job.layers
    assert first.modules is second.modules is other.modules
    assert second.facts is job.facts
    assert other.layers == layers[:1], "what differs is kept"


def test_the_same_incarnation_on_a_new_connection_is_a_reconnect() -> None:
    core = Core()
    hellos = launched(core)
    core.say(b"a1", a_report(7, seq=7), 1.0)

    core.say(b"another connection", hellos[1], 2.0)
    core.say(b"another connection", a_report(9, seq=9), 3.0)

    (job,) = core.state.jobs.values()
    assert job.attempt is not None
    member = job.attempt.members[1]
    assert (job.num_attempts, member.step, member.num_missed) == (1, 9, 1)
    assert core.state.num_peers == 2


def test_what_still_comes_on_the_old_connection_is_asked_who_it_is() -> None:
    core = Core()
    hellos = launched(core)
    core.say(b"another connection", hellos[1], 2.0)

    ((peer, message),) = core.say(b"a1", a_report(8), 2.1)

    assert (peer, type(message).__name__) == (b"a1", "HelloRequest")


def test_a_higher_restart_count_of_the_same_launch_begins_a_new_attempt_at_once() -> None:
    core = Core()
    launched(core, proof=PROOF)
    core.say(b"a0", a_report(5), 1.0)

    launched(core, name="b", attempt=1, now=1.5, proof=PROOF)

    (job,) = core.state.jobs.values()
    assert (job.num_attempts, core.sink.attempts, job.num_live(job.last_seen)) == (2, [1, 2], 2)
    assert [summary.step for summary in core.sink.steps] == [5], "the old attempt's last step is not lost"


def test_a_new_launch_after_a_clean_end_begins_at_once() -> None:
    core = Core()
    launched(core)
    for peer in (b"a0", b"a1"):
        core.say(
            peer,
            Bye(
                step=5,
            ),
            1.0,
        )

    launched(core, name="b", launch="run-2", now=1.1)

    assert core.state.jobs["train"].num_attempts == 2


def test_the_old_ranks_are_told_that_a_newer_launch_has_taken_over() -> None:
    core = Core()
    launched(core, proof=PROOF)
    launched(core, name="b", attempt=1, now=1.0, proof=PROOF)

    replies = core.say(b"a0", a_report(6), 1.1)

    assert reasons(replies) == ["duplicate_job"]
    assert core.state.num_refused["duplicate_job"] == 1


def run_beside(core: Core, *names: str, until: float) -> None:
    """These runs send heartbeats for so long."""
    for second in range(2, int(until) + 1):
        for name in names:
            beats(core, name, float(second))
        core.pass_time(second + 0.5)


def test_of_two_live_runs_of_one_name_the_second_is_a_job_of_its_own() -> None:
    core = Core()
    launched(core)
    hellos = launched(core, name="b", launch="run-2", host="elsewhere", now=1.0)
    for step in range(1, 4):
        for rank in range(2):
            core.say(b"b%d" % rank, a_report(step, loss=99.0), 1.2)
    run_beside(core, "a", "b", until=9.0)
    assert list(core.state.jobs) == ["train"], "the first may be about to end"

    run_beside(core, "a", "b", until=13.0)

    assert [(job.name, job.num_attempts, job.num_live(13.5)) for job in core.state.jobs.values()] == [
        ("train", 1, 2),
        ("train-2", 1, 2),
    ]
    assert [(s.step, s.loss) for s in core.sink.steps] == [(1, 99.0), (2, 99.0), (3, 99.0)], "nothing was lost or mixed"
    core.say(b"b0", hellos[0], 14.0)  # a new Hello has the name that its run was started with
    core.say(b"again", hellos[1], 14.0)
    assert list(core.state.jobs) == ["train", "train-2"]
    assert core.state.jobs["train-2"].num_live(14.0) == 2


def test_a_third_run_of_the_name_is_a_third_job_and_a_free_name_is_used_again() -> None:
    core = Core()
    launched(core)
    launched(core, name="b", launch="run-2", now=1.0)
    run_beside(core, "a", "b", until=13.0)
    launched(core, name="c", launch="run-3", now=13.6)
    run_beside(core, "a", "b", "c", until=26.0)
    assert list(core.state.jobs) == ["train", "train-2", "train-3"]
    for rank in range(2):
        core.say(b"b%d" % rank, Bye(step=5), 26.6)

    launched(core, name="d", launch="run-4", now=27.0)
    run_beside(core, "a", "c", "d", until=40.0)

    assert list(core.state.jobs) == ["train", "train-2", "train-3"]
    assert core.state.jobs["train-2"].num_attempts == 2


def test_what_a_waiting_newcomer_sends_is_kept_and_not_mixed_in() -> None:
    core = Core()
    launched(core)
    launched(core, name="b", launch="run-2", now=1.0)
    for step in range(1, 6):
        core.say(b"b0", a_report(step, loss=99.0), 1.2)
        core.say(b"b1", a_report(step, loss=99.0), 1.2)
    beats(core, "a", 2.5)
    core.pass_time(2.6)
    core.pass_time(2.4 + PATIENCE_SECONDS)
    assert core.sink.steps == []

    core.pass_time(2.5 + PATIENCE_SECONDS)

    assert [(s.attempt, s.step, s.num_ranks) for s in core.sink.steps] == [(2, step, 2) for step in range(1, 6)]
    assert core.state.num_refused["unknown_peer"] == 0


def test_a_claimant_that_went_away_without_a_report_does_not_get_the_name() -> None:
    """It would end the incidents of the launch that it waited for."""
    core = Core()
    launched(core)
    launched(core, name="b", launch="run-2", now=1.0)
    for rank in range(2):
        core.receiver.unreachable(f"a{rank}".encode())
    job = core.state.jobs["train"]
    beats(core, "a", 10.0)
    core.pass_time(10.5)

    core.pass_time(11.0 + PATIENCE_SECONDS)
    assert job.num_attempts == 1

    beats(core, "b", 12.0 + PATIENCE_SECONDS)
    core.pass_time(12.1 + PATIENCE_SECONDS)
    assert job.num_attempts == 2, "it is there after all"


def test_a_claim_of_a_live_launch_without_its_secret_changes_nothing() -> None:
    """It knows the launch id, the world, the rank, even the incarnation, and claims that the ranks were restarted."""
    core = Core()
    hellos = launched(core, proof=PROOF)
    core.say(b"a0", a_report(1), 0.5)
    forged = [
        msgspec.structs.replace(hellos[1], **change)
        for change in (
            {"proof": ""},
            {"proof": "another"},
            {"proof": "", "attempt": 1},
            {"proof": "", "attempt": 9, "incarnation": "incarnation-forged"},
        )
    ]
    for number, hello in enumerate(forged):
        peer = f"forger{number}".encode()
        core.say(peer, hello, 1.0)
        core.say(peer, a_report(1, loss=99.0, attempt=hello.attempt), 1.0)
    core.pass_time(1.5)
    core.say(b"a1", a_report(1), 1.6)
    core.pass_time(1.7)

    job = core.state.jobs["train"]
    assert [(s.step, s.loss, s.num_ranks) for s in core.sink.steps] == [(1, 2.0, 2)]
    assert (job.num_attempts, job.num_live(job.last_seen)) == (1, 2)
    assert job.attempt is not None
    assert job.attempt.members[1].hello.incarnation == hellos[1].incarnation


def test_without_a_secret_a_restart_waits_until_the_old_connections_are_closed() -> None:
    core = Core()
    launched(core)
    launched(core, name="b", attempt=1, now=1.0)
    for rank in range(2):
        core.say(f"b{rank}".encode(), a_report(1, attempt=1), 1.1)
    probed = {peer for peer, message in core.pass_time(1.2) if isinstance(message, Terms)}
    assert probed == {b"a0", b"a1"}
    assert core.state.jobs["train"].num_attempts == 1

    core.receiver.unreachable(b"a0")
    core.pass_time(1.3)
    assert core.state.jobs["train"].num_attempts == 1, "one rank is alive"
    core.receiver.unreachable(b"a1")
    core.pass_time(1.4)

    assert core.state.jobs["train"].num_attempts == 2
    assert [(s.attempt, s.step, s.num_ranks) for s in core.sink.steps] == [(2, 1, 2)]


def test_the_proof_goes_no_further() -> None:
    core = Core()
    launched(core, proof=PROOF)
    attempt = core.state.jobs["train"].attempt
    assert attempt is not None
    assert [member.hello.proof for member in attempt.members.values()] == ["", ""]


def test_a_relaunch_after_a_kill_waits_for_the_old_ranks_silence_and_loses_nothing() -> None:
    core = Core()
    launched(core, now=0.0)
    launched(core, name="b", launch="run-2", now=1.0)
    for step in range(1, 4):
        core.say(b"b0", a_report(step), 1.5)
        core.say(b"b1", a_report(step), 1.5)

    core.pass_time(PATIENCE_SECONDS - 0.1)
    assert core.state.jobs["train"].num_attempts == 1

    assert core.pass_time(PATIENCE_SECONDS + 0.1) == []
    job = core.state.jobs["train"]
    assert (job.num_attempts, job.num_live(job.last_seen), job.num_refused) == (2, 2, 0)
    assert [(s.attempt, s.step, s.num_ranks) for s in core.sink.steps] == [(2, 1, 2), (2, 2, 2), (2, 3, 2)]


def test_last_words_that_were_still_on_their_way_do_not_refuse_the_relaunch() -> None:
    core = Core()
    launched(core, now=0.0)
    launched(core, name="b", launch="run-2", now=1.0)
    core.say(b"a0", a_report(3), 1.8)

    core.pass_time(1.9)
    beats(core, "b", 1.7 + PATIENCE_SECONDS)
    core.pass_time(1.8 + PATIENCE_SECONDS)

    assert core.state.jobs["train"].num_attempts == 2


def test_a_newcomer_takes_its_place_when_the_old_launch_says_goodbye() -> None:
    core = Core()
    launched(core, now=0.0)
    launched(core, name="b", launch="run-2", now=1.0)
    core.say(b"b0", a_report(1), 1.1)
    for peer in (b"a0", b"a1"):
        core.say(
            peer,
            Bye(
                step=5,
            ),
            3.0,
        )

    assert core.pass_time(3.1) == []
    assert core.state.jobs["train"].num_attempts == 2


def test_a_rank_of_another_world_size_is_another_launch() -> None:
    core = Core()
    launched(core)

    core.say(b"c2", a_hello(rank=2, world=3), 1.0)
    for second in range(2, 13):
        beats(core, "a", float(second))
        core.say(b"c2", Heartbeat(step=0), second + 0.2)
        core.pass_time(second + 0.5)

    assert list(core.state.jobs) == ["train", "train-2"]


def test_a_late_rank_of_the_same_launch_joins_at_any_time() -> None:
    core = Core()
    core.say(b"a0", a_hello(rank=0), 0.0)

    core.say(b"a1", a_hello(rank=1), 500.0)

    job = core.state.jobs["train"]
    assert job.attempt is not None
    assert (job.num_attempts, sorted(job.attempt.members)) == (1, [0, 1])


def test_a_rank_that_comes_back_after_its_goodbye_is_live_again() -> None:
    core = Core()
    hellos = launched(core)
    core.say(
        b"a1",
        Bye(
            step=5,
        ),
        1.0,
    )

    core.say(b"a1", hellos[1], 2.0)

    assert core.state.jobs["train"].num_live(0.0) == 2


def test_jobs_of_different_names_do_not_touch() -> None:
    core = Core()
    launched(core)
    launched(core, name="b", job="other")

    assert {name: job.num_live(job.last_seen) for name, job in core.state.jobs.items()} == {"train": 2, "other": 2}
