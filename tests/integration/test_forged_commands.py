"""Whoever binds the endpoint before the daemon, or in its place, cannot command a run that may act."""

import threading
import time
from pathlib import Path

import pytest

from caboose_wire import Ack, Command, Holdings, StepReport, encode, sign
from caboose_wire.rollback import CommandKind
from support.collector import Collector, collector, user_secret
from support.processes import wait_until
from support.rollback_runs import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

KINDS: tuple[CommandKind, ...] = ("scale_lr", "stop")


def test_a_rogue_daemon_commands_nothing_with_the_default_settings(tmp_path: Path) -> None:
    with collector() as rogue:
        forging = threading.Thread(target=_forge, args=(rogue,))
        forging.start()
        options = ["--steps", "120", "--spike-at", "1000", "--step-seconds", "0.05", "--snapshot-every", "10"]
        run = train(rogue, tmp_path, *options, "--rollback", "auto")
        forging.join(30)

    answers = [m for m in rogue.messages if isinstance(m, Ack)]
    assert run.returncode == 0, run.log
    assert len(run.losses) == 120
    assert {ack.outcome for ack in answers} == {"refused"}
    assert {ack.command for ack in answers} == {1, 2, 3, 4}
    assert all("not signed" in ack.detail for ack in answers)


def _forge(rogue: Collector) -> None:
    """Sends what a daemon would send, without the secret: once unsigned, once signed with another."""
    held = wait_until(lambda: [m for m in rogue.messages if isinstance(m, Holdings)], 60)[0]
    wait_until(lambda: any(isinstance(m, StepReport) for m in rogue.messages), 30)
    for number, kind in enumerate([*KINDS, *KINDS], start=1):
        step = max(m.step for m in rogue.messages if isinstance(m, StepReport))
        command = Command(
            number=number,
            kind=kind,
            group=held.group,
            world=2,
            boundary=step + 30,
            lr_scale=0.5,
            expires=time.time() + 60,
        )
        rogue.say_raw(encode(command if number <= len(KINDS) else sign(command, user_secret()[::-1])))
        wait_until(lambda: sum(isinstance(m, Ack) for m in rogue.messages) >= 2 * number, 10)  # noqa: B023 - now
