"""A run of one rank with its brake on: it goes back when it is asked to, and only then."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import caboose
from caboose_wire import Hello, Holdings, StepReport, Terms, encode, sign
from support.braked import Braked
from support.collector import Collector
from support.processes import wait_until

Attach = Callable[..., caboose.Monitor]
SECRET = b"a secret that both sides know"
pytestmark = pytest.mark.usefixtures("impatient")


def test_it_goes_back_at_the_boundary_and_a_new_attempt_begins(guarded: Callable[..., Braked]) -> None:
    run = guarded()
    run.train(22)
    held = run.holdings(lambda h: [s.step for s in h.snapshots if s.is_ready] == [5, 10, 15, 20])
    assert [s.step for s in held.snapshots] == [5, 10, 15, 20]
    command = run.command(target=10)
    run.daemon.say(command)
    wait_until(lambda: run.answers(command.number), 10)
    rate = run.optimizer.param_groups[0]["lr"]
    run.train(command.boundary - run.monitor.current_step - 1)
    before = {id(p): p.data_ptr() for p in run.model.parameters()}
    run.train(1)

    run.assert_state_of(10)
    assert {id(p): p.data_ptr() for p in run.model.parameters()} == before
    assert run.optimizer.param_groups[0]["lr"] < rate, "the schedule goes on"
    assert (run.monitor.num_rollbacks, run.monitor.model_step) == (1, 10)
    run.train(3)
    assert wait_until(lambda: run.num_answers("done"), 10)
    hello = next(m for m in run.daemon.messages if isinstance(m, Hello) and m.attempt == 1)
    assert hello.start_step == command.boundary
    assert wait_until(lambda: sum(r.attempt == 1 for r in run.daemon.reports) >= 2, 10)
    later = [r for r in run.daemon.reports if r.attempt == 1]
    assert [(r.step, r.model_step) for r in later][:2] == [(command.boundary + 1, 11), (command.boundary + 2, 12)]
    place = run.daemon.messages.index
    assert place(run.daemon.reports[command.boundary - 1]) < place(hello) < place(later[0]), "in the order it happened"
    after = run.holdings(lambda h: h.last_number == 1 and h.budget_left < 3)
    assert max(s.step for s in after.snapshots) <= 10 or all(s.step > command.boundary for s in after.snapshots[2:])
    assert after.budget_left == held.budget_left - 1


def test_batches_are_skipped_and_the_rate_is_scaled_for_good(guarded: Callable[..., Braked]) -> None:
    run = guarded()
    run.train(20)
    run.holdings(lambda h: any(s.step == 10 and s.is_ready for s in h.snapshots))
    command = run.command(target=10, skip=7, lr_scale=0.5)
    assert run.tell(command) == "done"
    run.train(1)
    assert run.monitor._skip.num_dropped == 7
    expected = 0.01 * 0.5 / (1 + (run.scheduler.last_epoch) / 100)
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(expected)


@pytest.mark.parametrize("own", [1.0, 0.5])
def test_a_rate_that_jumped_off_its_schedule_is_set_back_to_it(guarded: Callable[..., Braked], own: float) -> None:
    """A loop may scale the schedule's rate all the time (`own`): that is kept, only the jump is undone."""
    run = guarded()
    run.optimizer.param_groups[0]["lr"] *= own
    run.train(1)
    step = run.scheduler.step

    def scaled_step() -> None:
        step()
        run.optimizer.param_groups[0]["lr"] *= own

    run.scheduler.step = scaled_step
    run.train(19)
    run.holdings(lambda h: any(s.step == 10 and s.is_ready for s in h.snapshots))
    run.scheduler.step = lambda: None  # the loop's bug: from here on the rate is its own
    run.optimizer.param_groups[0]["lr"] *= 40
    assert run.tell(run.command(target=10)) == "done"
    (scheduled,) = run.scheduler.get_last_lr()
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(scheduled * own)
    assert "learning rate set back to its schedule" in run.answers(run.num_commands)[-1].detail


def test_a_snapshot_that_is_not_there_is_a_veto_and_nothing_changes(guarded: Callable[..., Braked]) -> None:
    run = guarded()
    run.train(20)
    assert run.tell(run.command(target=7)) == "refused"
    assert run.monitor.num_rollbacks == 0


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_learning_rate_that_cannot_be_is_a_veto(guarded: Callable[..., Braked], scale: float) -> None:
    run = guarded()
    run.train(12)
    for kind in ("rollback", "scale_lr"):
        command = run.command(kind=kind, target=10, lr_scale=scale)
        run.daemon.say(command)
        assert wait_until(lambda: run.answers(run.num_commands), 10)[-1].outcome == "refused"


def test_the_other_kinds_are_carried_out_too(guarded: Callable[..., Braked], tmp_path: Path) -> None:
    run = guarded(checkpoints=tmp_path)
    run.train(12)
    rate = run.scheduler.base_lrs[0]
    assert run.tell(run.command(kind="scale_lr", lr_scale=0.25)) == "done"
    assert run.scheduler.base_lrs[0] == pytest.approx(rate / 4)
    snapshot = run.command(kind="snapshot")
    assert run.tell(snapshot) == "done"
    assert run.holdings(lambda h: snapshot.boundary in [s.step for s in h.snapshots])
    checkpoint = run.command(kind="checkpoint")
    assert run.tell(checkpoint) == "done"
    assert (tmp_path / f"step-{checkpoint.boundary}").is_dir()
    assert any(getattr(m, "kind", "") == "checkpoint" for m in run.daemon.messages)
    stop = run.command(kind="stop", reason="it is hopeless")
    run.daemon.say(stop)
    wait_until(lambda: run.answers(stop.number), 10)
    with pytest.raises(caboose.RollbackFailed, match=r"it is hopeless.*caboose\.resume_plan"):
        run.train(10)
    assert run.monitor.current_step == stop.boundary


def test_an_unsigned_command_is_refused_where_there_is_a_secret(
    guarded: Callable[..., Braked], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    monkeypatch.setenv("CABOOSE_SECRET_FILE", str(tmp_path / "secret"))
    run = guarded()
    run.train(20)
    run.holdings(lambda h: any(s.step == 10 and s.is_ready for s in h.snapshots))
    for secret in (None, b"another secret, as long"):
        command = run.command(target=10)
        run.daemon.say_raw(encode(command if secret is None else sign(command, secret)))
        assert wait_until(lambda: run.answers(run.num_commands), 10)[-1].outcome == "refused"
    assert run.tell(sign(run.command(target=10), SECRET)) == "done"


def test_no_snapshot_is_taken_while_the_daemon_holds(guarded: Callable[..., Braked]) -> None:
    run = guarded()
    run.train(7)
    run.holdings()
    run.daemon.say(Terms(rollback="auto", is_holding=True))
    assert wait_until(lambda: run.monitor._brake is not None and run.monitor._brake._ring.hold, 10)
    run.train(20)
    assert [s.step for s in run.monitor._brake._ring.held] == [5]  # type: ignore[union-attr]  # as above


def test_while_an_incident_is_open_commands_are_read_and_answered_at_once(guarded: Callable[..., Braked]) -> None:
    run = guarded()
    run.train(7)
    run.holdings()
    time.sleep(2.6)  # without a step the sender wakes twice a second
    run.daemon.say(Terms(rollback="auto", is_holding=True))
    assert wait_until(lambda: run.monitor._brake is not None and run.monitor._brake._ring.hold, 10)
    seconds = []
    for _ in range(6):
        began = time.monotonic()
        assert run.tell(run.command(target=3)) == "refused"
        seconds.append(time.monotonic() - began)
    assert sorted(seconds)[3] < 0.25, seconds

    run.daemon.say(Terms(rollback="auto"))
    assert wait_until(lambda: not run.monitor._session.sender._is_alert, 10)  # type: ignore[union-attr]  # as above


def test_the_mode_in_force_is_logged(guarded: Callable[..., Braked], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="caboose")
    run = guarded()
    run.train(1)
    wait_until(lambda: run.daemon.hellos, 10)
    run.daemon.say(Terms(rollback="advise"))
    assert wait_until(
        lambda: "auto here and advise at the daemon, so advise is in force: start it with" in caplog.text, 10
    )


def test_a_command_that_expires_while_the_loop_pauses_is_given_up(guarded: Callable[..., Braked]) -> None:
    run = guarded()
    run.train(12)
    command = run.command(target=5, expires=time.time() + 1.5)
    run.daemon.say(command)
    assert wait_until(lambda: run.answers(command.number), 10)[0].outcome == "accepted"
    assert wait_until(lambda: len(run.answers(command.number)) == 2, 10), "without a step"
    assert "expired before its boundary" in run.answers(command.number)[1].detail
    run.train(10)
    assert run.monitor.num_rollbacks == 0
    assert run.tell(run.command(target=10)) == "done", "and the next one is heard"


def test_a_checkpoint_that_fails_is_no_success_and_no_end(guarded: Callable[..., Braked], tmp_path: Path) -> None:
    run = guarded(checkpoints=tmp_path / "kept")
    run.train(12)
    (tmp_path / "kept").write_text("a file where the directory should be")
    assert run.tell(run.command(kind="checkpoint")) == "aborted"
    run.train(3)


def test_what_the_ledger_knows_of_checkpoints_is_marked_on_disk(guarded: Callable[..., Braked], tmp_path: Path) -> None:
    run = guarded(checkpoints=caboose.Checkpoints(tmp_path, keep=1))
    run.holdings()
    for _ in range(3):
        run.train(1)
        run.monitor.checkpoint()
        if run.monitor.current_step == 1:
            run.daemon.say(Terms(rollback="auto", best=1))
            assert wait_until((tmp_path / "step-1" / "best").exists, 10)
        elif run.monitor.current_step == 2:
            run.daemon.say(Terms(rollback="auto", best=1, tainted=(2,)))
            assert wait_until((tmp_path / "step-2" / "tainted").exists, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-3"], "the newest, and the best"


def test_a_count_in_strides_has_its_snapshots_too(guarded: Callable[..., Braked]) -> None:
    run = guarded()
    assert run.monitor._brake is not None
    ring = run.monitor._brake._ring
    for number in range(3, 40, 7):
        run.monitor.step(1.0, step=number)
        assert wait_until(lambda: all("checked" not in ring.why_not(held.step) for held in ring.held), 10)
    assert [held.step for held in ring.held] == [10, 24, 31, 38], "the near ones and a far one"


def test_a_counter_of_the_users_own_that_goes_back_is_followed(guarded: Callable[..., Braked]) -> None:
    run = guarded()
    monitor = run.monitor
    monitor._count.num_rollbacks = 1
    for own in (1, 2, 3, 2, 3, 4):
        monitor.step(1.0, step=own)
    assert monitor.current_step == 6
    found = wait_until(lambda: len(run.daemon.reports) == 6 and run.daemon.reports, 10)
    assert [report.step for report in found] == [1, 2, 3, 4, 5, 6]


def test_what_auto_adds_is_not_there_without_it(attach: Attach, network: torch.nn.Module, listening: Collector) -> None:
    monitor = attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint)
    monitor.step(1.0)
    assert monitor._brake is None
    listening.wait_for(StepReport)
    assert not [m for m in listening.messages if isinstance(m, Holdings)]
    assert listening.hellos[0].rollback == "advise"
