"""A run that may act obeys only commands with this user's secret, without any configuration."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from caboose_wire import Ack, encode
from support.braked import Braked
from support.processes import wait_until

pytestmark = pytest.mark.usefixtures("impatient")


def test_an_unsigned_command_is_refused_by_default(guarded: Callable[..., Braked]) -> None:
    run = guarded()
    run.train(12)
    command = run.command(kind="scale_lr", lr_scale=0.5)
    run.daemon.say_raw(encode(command))
    assert wait_until(lambda: run.answers(command.number), 10)[-1].outcome == "refused"
    assert run.tell(run.command(kind="scale_lr", lr_scale=0.5)) == "done", "and the signed one is obeyed"


@pytest.mark.parametrize("problem", ["exposed", "unwritable"])
def test_without_a_secret_that_can_be_trusted_advise_is_in_force(
    guarded: Callable[..., Braked],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "caboose").mkdir(mode=0o700)
    if problem == "exposed":
        (tmp_path / "caboose" / "secret").write_text("a secret that everybody can read")
        (tmp_path / "caboose" / "secret").chmod(0o644)
    else:
        tmp_path = Path(os.devnull)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = guarded()
    assert "so advise is in force" in caplog.text
    assert ("chmod 600" if problem == "exposed" else os.devnull) in caplog.text
    run.train(12)
    assert wait_until(lambda: run.daemon.hellos, 10)[0].rollback == "advise"
    monkeypatch.undo()
    command = run.command(kind="stop")
    run.daemon.say(command)
    run.daemon.say_raw(encode(command))
    assert wait_until(lambda: len(run.answers(command.number)) == 2, 10)
    run.train(10)
    assert {m.outcome for m in run.daemon.messages if isinstance(m, Ack)} == {"refused"}
