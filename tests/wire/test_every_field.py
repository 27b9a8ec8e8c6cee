"""Every field of every wire message is set by one side and read by the other: seen on a real run, not in the source."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caboose_wire.codec import TYPES
from caboose_wire.messages import LAYER_ARRAYS, MODULE_ARRAYS
from support import wire_recorder
from support.jobs.every_field import DIFFER
from support.processes import DaemonProcess, clean_environment, running_daemon, wait_until
from support.training import JOBS, training

pytestmark = pytest.mark.slow

JOB = "every-field"
Seen = dict[str, dict[str, set[str]]]
"""By side, what it has set and what it has read."""
DAEMON = """
import sys
from pathlib import Path
from support import wire_recorder
wire_recorder.install(Path(sys.argv.pop(1)), "daemon")
from caboose_daemon.entry import main
main()
"""
MISFIT = """
import sys, time
from pathlib import Path
import torch
from support import wire_recorder
wire_recorder.install(Path(sys.argv[1]), "agent")
import caboose
rank = int(sys.argv[2])
model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(1 + rank)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = caboose.attach(model, optimizer, job="misfit", rank=rank, world_size=2)
for _ in range(30):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    monitor.step(1.0)
    time.sleep(0.1)
raise KeyboardInterrupt
"""

SHORT_STEPS = """
import sys, time
from pathlib import Path
import torch
from support import wire_recorder
wire_recorder.install(Path(sys.argv[1]), "agent")
import caboose
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
monitor = caboose.attach(
    model, optimizer, scheduler=scheduler, job="short", sampling=caboose.Sampling(overhead_budget=1e-4)
)
end = time.monotonic() + 5.0
while time.monotonic() < end:
    for batch in monitor.watch([torch.ones(2, 2)] * 100):
        loss = torch.nn.functional.mse_loss(model(batch), torch.randn(2, 2))
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        monitor.step(loss, num_samples=1, num_tokens=2)
        time.sleep(0.001)
"""


def every_field() -> set[str]:
    assert wire_recorder.structs() >= set(TYPES.values())
    named = {f"{s.__name__}.{field.name}" for s in wire_recorder.structs() for field in msgspec.structs.fields(s)}
    return named | {f"arrays[{name}]" for name in LAYER_ARRAYS | MODULE_ARRAYS}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What each side has set and read in a run that uses everything."""
    folder = tmp_path_factory.mktemp("every-field")
    secret, config = folder / "secret", folder / "caboose.toml"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)
    # The job's last layer is watched as if it were a router; as one it would be ill, and no snapshot healthy.
    rules = "[rules.expert_collapse]\nenabled = false\n"
    config.write_text(f'{rules}[export]\ntensorboard_dir = "{folder / "mirror"}"\n')
    options = ("--rollback", "auto", "--secret-file", str(secret), "--config", str(config))
    command = [sys.executable, "-c", DAEMON, str(folder)]
    with running_daemon(folder / "daemon", *options, command=command) as daemon:
        env = {"CABOOSE_ENDPOINT": daemon.endpoint, "CABOOSE_SECRET_FILE": str(secret)}
        with training(folder, env=env, script=JOBS / "every_field.py") as process:
            assert wait_until(lambda: daemon.step(JOB) > 60, 60), (folder / "job.log").read_text()
            assert wait_until(lambda: _has_hunted(daemon), 60), "the bad batch of an epoch is hunted automatically"
            _command(daemon, "hunt")  # soon: a run makes three hunts at most, and each epoch's bad batch takes one
            assert wait_until(lambda: daemon.step(JOB) > 600, 60), "into the second epoch"
            _be_refused(folder, env)
            subprocess.run([sys.executable, "-c", SHORT_STEPS, str(folder)], env=clean_environment(**env), check=True)
            _read_everything(daemon, JOB)
            _command(daemon, "snapshot", "checkpoint", "scale_lr", "clip", "rollback")
            (folder / DIFFER).touch()
            differ_from = daemon.step(JOB)
            assert wait_until(lambda: daemon.step(JOB) > differ_from + 50, 60), "some samples compare the ranks"
            _command(daemon, "stop")
            process.wait(90)
        for job in daemon.get("/api/v1/jobs")["jobs"]:
            _read_everything(daemon, job["job"])
        daemon.stop()
    found: Seen = {side: {"set": set(), "read": set()} for side in ("agent", "daemon")}
    for path in folder.glob("*.*.json"):
        side = found[path.name.partition(".")[0]]
        for what, fields in json.loads(path.read_text()).items():
            side[what] |= set(fields)
    return found


def _be_refused(folder: Path, env: dict[str, str]) -> None:
    """Two ranks whose models differ, which Ctrl-C ends: the reports of one do not fit the job's layers."""
    environment = clean_environment(**env)
    commands = [[sys.executable, "-c", MISFIT, str(folder), rank] for rank in "01"]
    processes = [subprocess.Popen(each, env=environment, stderr=subprocess.DEVNULL) for each in commands]
    for process in processes:
        assert process.wait(60) == -signal.SIGINT


def _read_everything(daemon: DaemonProcess, job: str) -> None:
    """What a person and a Prometheus ask for."""
    daemon.text("/metrics")
    for path in ("", "/incidents", "/diagnosis", "/ledger", "/decisions", "/layers?stat=grad_norm", "/layers/0.weight"):
        daemon.text(f"/api/v1/jobs/{job}{path}")


def _has_hunted(daemon: DaemonProcess) -> bool:
    decisions = daemon.get(f"/api/v1/jobs/{JOB}/decisions")["decisions"]
    return any((row["kind"], row["state"]) == ("hunt", "committed") for row in decisions)


def _command(daemon: DaemonProcess, *kinds: str) -> None:
    """Has each of these commands carried out."""
    for kind in kinds:
        path = f"/api/v1/jobs/{JOB}/" + ("rollback" if kind == "rollback" else "commands")
        body = {"skip": 1, "lr_scale": 0.5} if kind == "rollback" else {"kind": kind}
        body |= {"lr_scale": 0.9} if kind == "scale_lr" else {"max_norm": 5.0} if kind == "clip" else {}
        is_done = wait_until(lambda path=path, body=body: _carried_out(daemon, path, body), 30)
        decisions = daemon.get(f"/api/v1/jobs/{JOB}/decisions")["decisions"]
        assert is_done, {(row["kind"], row["state"], row["outcome"]) for row in decisions}


def _carried_out(daemon: DaemonProcess, path: str, body: dict[str, object]) -> bool:
    """Whether all ranks did it; on a busy machine a rank may get a command too late, and it is given again."""
    number = _accepted(daemon, path, body)
    closed = wait_until(lambda: _closed(daemon, number), 30) if number else None
    return closed is not None and closed["state"] == "committed"


def _accepted(daemon: DaemonProcess, path: str, body: dict[str, object]) -> int:
    """The decision's number; 0 while another command is on its way."""
    status, answer = daemon.post(path, body)
    return int(answer["number"]) if status < 300 else 0


def _closed(daemon: DaemonProcess, number: int) -> Any:
    decisions = daemon.get(f"/api/v1/jobs/{JOB}/decisions")["decisions"]
    return next((row for row in decisions if row["number"] == number and not row["is_open"]), None)


DOWN = ("Command.", "HelloRequest.", "Welcome.", "Refused.", "Terms.", "Plan.", "PlannedCheckpoint.", "Verdict.")


def fields(*, is_down: bool) -> set[str]:
    return {name for name in every_field() if name.startswith(DOWN) == is_down}


MOMENTARY = {"Held.is_ready", "Holdings.is_off_schedule"}
"""The first is false for the milliseconds until a snapshot is checked, or where it is damaged (`test_snapshot_ring`);
the second is true only while a rate is apart from its schedule (`test_after_going_back`)."""


def test_the_agent_sets_every_field_that_goes_up(seen: Seen) -> None:
    assert fields(is_down=False) - seen["agent"]["set"] - MOMENTARY == set()


def test_the_daemon_reads_every_field_that_goes_up(seen: Seen) -> None:
    assert fields(is_down=False) - seen["daemon"]["read"] == set()


def test_the_daemon_sets_every_field_that_goes_down(seen: Seen) -> None:
    assert fields(is_down=True) - seen["daemon"]["set"] == set()


def test_the_agent_reads_every_field_that_goes_down(seen: Seen) -> None:
    assert fields(is_down=True) - seen["agent"]["read"] == set()
