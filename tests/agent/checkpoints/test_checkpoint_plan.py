"""The plan of a restart: the daemon's ledger and the disk together, and each without the other."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import zmq

import caboose
from caboose.checkpoints import layout, manifest
from caboose.checkpoints.errors import CheckpointRefused
from caboose_wire import HelloRequest, Message, Plan, PlannedCheckpoint, PlanRequest, Refused, decode, encode
from support.processes import clean_environment

NOBODY = "tcp://127.0.0.1:9"


class Ledger:
    """A daemon that only answers this one question."""

    def __init__(self, answers: list[Message], keys: tuple[bytes, bytes] | None = None) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        if keys is not None:
            self._socket.curve_server = True
            self._socket.curve_publickey, self._socket.curve_secretkey = keys
        self._socket.bind("tcp://127.0.0.1:0")
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.asked: list[Message] = []
        self._answers = answers
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            if self._socket.poll(20):
                peer, *frames = self._socket.recv_multipart()
                self.asked.append(decode(frames))
                for answer in self._answers:
                    self._socket.send_multipart([peer, *encode(answer)])

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(5)
        self._socket.close(linger=0)
        self._context.term()


@pytest.fixture
def ledger() -> Iterator[Callable[..., Ledger]]:
    with contextlib.ExitStack() as stack:

        def start(*answers: Message, keys: tuple[bytes, bytes] | None = None) -> Ledger:
            made = Ledger(list(answers), keys)
            stack.callback(made.close)
            return made

        yield start


def a_checkpoint(directory: Path, step: int, *, world: int = 2) -> Path:
    """One that is whole, as far as a plan looks."""
    path = layout.path_of(directory, step)
    path.mkdir(parents=True)
    (path / layout.INDEX).write_text("{}")
    (path / "__0_0.distcp").write_bytes(bytes(100))
    files = {name: manifest.described(path / name) for name in (layout.INDEX, "__0_0.distcp")}
    manifest.write(
        path,
        manifest.Manifest(
            format=1,
            step=step,
            model_step=step,
            world=world,
            time=1.0,
            torch="2",
            wrapper="",
            parts=(),
            local=("random numbers",),
            files=files,
        ),
    )
    return path


def planned(path: Path, step: int, health: str = "healthy", reason: str = "") -> PlannedCheckpoint:
    return PlannedCheckpoint(path=str(path), step=step, health=health, reason=reason)  # type: ignore[arg-type]


def test_the_ledgers_order_and_advice_are_followed(tmp_path: Path, ledger: Callable[..., Ledger]) -> None:
    one, two, three = (a_checkpoint(tmp_path, step) for step in (100, 200, 300))
    daemon = ledger(
        HelloRequest(),
        Plan(
            job="train",
            checkpoints=(
                planned(two, 200),
                planned(one, 100, "unproven"),
                planned(three, 300, "tainted", "the loss had diverged"),
            ),
            skip=((201, 240),),
            lr_scale=0.5,
            reason="loss_spike at step 215",
        ),
    )
    plan = caboose.resume_plan(tmp_path, job="train", endpoint=daemon.endpoint, world_size=2)
    assert daemon.asked == [PlanRequest(job="train", world=2)]
    assert (plan.checkpoint, plan.step, plan.is_ours, plan.health) == (str(two), 200, True, "healthy")
    assert plan.others == (str(one),), "what is tainted is not among them"
    assert [plan.skips(step) for step in (200, 201, 240, 241)] == [False, True, True, False]
    assert plan.explain().splitlines() == [
        f"Resume from {two}, after step 200, healthy by the daemon's ledger.",
        "Skip the batches of steps 201 to 240.",
        "Multiply the learning rate by 0.5.",
        "The daemon: loss_spike at step 215",
    ]


def test_what_the_ledger_calls_healthy_and_the_disk_does_not_is_passed_over(
    tmp_path: Path, ledger: Callable[..., Ledger]
) -> None:
    own = tmp_path / "my-own.pt"
    own.write_bytes(b"anything")
    cut, unfinished, other = (a_checkpoint(tmp_path / "c", step) for step in (400, 300, 200))
    (cut / "__0_0.distcp").write_bytes(bytes(99))
    (unfinished / layout.MANIFEST).unlink()
    manifest.write(other, manifest.read(a_checkpoint(tmp_path / "d", 200, world=4)))
    gone = tmp_path / "gone.pt"
    found = [
        planned(path, step) for path, step in ((cut, 400), (gone, 350), (unfinished, 300), (other, 200), (own, 150))
    ]
    daemon = ledger(Plan(job="train", checkpoints=tuple(found)))
    plan = caboose.resume_plan(tmp_path / "c", job="train", endpoint=daemon.endpoint, world_size=2)
    assert (plan.checkpoint, plan.step, plan.is_ours) == (str(own), 150, False)
    assert [path for path, _ in plan.rejected] == [str(path) for path in (cut, gone, unfinished, other)]
    reasons = [reason for _, reason in plan.rejected]
    assert reasons[0] == "__0_0.distcp has 99 bytes, 100 were written"
    assert reasons[1] == "it is not there"
    assert reasons[2].startswith("it has no caboose.json")
    assert reasons[3].startswith("4 ranks wrote it and 2 would load it")
    with pytest.raises(
        CheckpointRefused, match=r"my-own\.pt: Caboose did not write it; load it with the code that did"
    ):
        caboose.load_checkpoint(plan, torch.nn.Linear(1, 1), [])


def test_the_batches_to_leave_out_are_known_for_an_older_checkpoint_too(
    tmp_path: Path, ledger: Callable[..., Ledger]
) -> None:
    old, new = a_checkpoint(tmp_path, 100), a_checkpoint(tmp_path, 300)
    checkpoints = (planned(new, 300), planned(old, 100))
    daemon = ledger(Plan(job="train", checkpoints=checkpoints, skip=((40, 60), (95, 150), (297, 330))))

    plan = caboose.resume_plan(tmp_path, job="train", endpoint=daemon.endpoint, world_size=2)

    assert plan.skips(120), "if that of step 300 turns out to be damaged, that of step 100 is loaded"
    told = [line for line in plan.explain().splitlines() if line.startswith("Skip")]
    assert told == ["Skip the batches of steps 301 to 330."]
    (new / "__0_0.distcp").unlink()
    plan = caboose.resume_plan(tmp_path, job="train", endpoint=daemon.endpoint, world_size=2)
    told = [line for line in plan.explain().splitlines() if line.startswith("Skip")]
    assert told == [f"Skip the batches of steps {steps}." for steps in ("101 to 150", "297 to 330")]


def test_an_older_checkpoint_has_a_learning_rate_of_its_own(tmp_path: Path, ledger: Callable[..., Ledger]) -> None:
    old, new = a_checkpoint(tmp_path, 100), a_checkpoint(tmp_path, 300)
    checkpoints = (
        PlannedCheckpoint(str(new), 300, "healthy", lr_scale=0.5),
        PlannedCheckpoint(str(old), 100, "healthy", lr_scale=0.25),
    )
    daemon = ledger(Plan(job="train", checkpoints=checkpoints, lr_scale=0.5))

    plan = caboose.resume_plan(tmp_path, job="train", endpoint=daemon.endpoint, world_size=2)
    assert (plan.lr_scale, plan.lr_scales) == (0.5, {str(old): 0.25})
    (new / "__0_0.distcp").unlink()
    plan = caboose.resume_plan(tmp_path, job="train", endpoint=daemon.endpoint, world_size=2)
    assert (plan.lr_scale, plan.lr_scales) == (0.25, {})


def test_what_the_ledger_does_not_know_of_comes_after_what_it_does(
    tmp_path: Path, ledger: Callable[..., Ledger]
) -> None:
    one, two = a_checkpoint(tmp_path, 100), a_checkpoint(tmp_path, 200)
    daemon = ledger(Plan(job="train", checkpoints=(planned(one, 100),)))
    plan = caboose.resume_plan(tmp_path, job="train", endpoint=daemon.endpoint, world_size=2)
    assert (plan.checkpoint, plan.others) == (str(one), (str(two),))
    silent = ledger(Plan(job="train"))
    plan = caboose.resume_plan(tmp_path, job="train", endpoint=silent.endpoint, world_size=2)
    assert (plan.checkpoint, plan.health, plan.source) == (str(two), "", "daemon")


def test_without_a_daemon_it_is_the_newest_whole_one_that_bears_no_bad_mark(tmp_path: Path) -> None:
    one, two, three = (a_checkpoint(tmp_path, step) for step in (100, 200, 1000))
    layout.set_mark(three, "tainted")
    (two / "__0_0.distcp").write_bytes(b"\1" + bytes(99))
    plan = caboose.resume_plan(tmp_path, job="train", endpoint=NOBODY, timeout=0.05)
    assert plan.checkpoint == str(one)
    assert plan.rejected == (
        (str(three), "tainted: it is marked `tainted`"),
        (str(two), "__0_0.distcp is damaged: its checksum does not match"),
    )
    why = f"no daemon at {NOBODY} within 0.05 s"
    assert plan.explain().endswith(
        f"Without the daemon ({why}): the newest complete checkpoint on disk, healthy or not."
    )
    quick = caboose.resume_plan(tmp_path, job="train", endpoint=NOBODY, timeout=0.05, verify=False)
    assert quick.checkpoint == str(two), "sizes alone do not show it"


def test_a_new_run_is_told_from_one_whose_checkpoints_may_not_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(1, 1)
    monkeypatch.setenv("CABOOSE_DISABLED", "1")
    (tmp_path / "step-5.incomplete").mkdir()
    plan = caboose.resume_plan(tmp_path)
    assert (plan.is_new_run, plan.step, plan.reason) == (True, 0, "CABOOSE_DISABLED is set")
    assert plan.explain().startswith("There is no checkpoint: the run starts from the beginning.")
    assert caboose.load_checkpoint(plan, model, []) is None
    layout.set_mark(a_checkpoint(tmp_path, 4), "tainted")
    plan = caboose.resume_plan(tmp_path)
    assert not plan.is_new_run
    with pytest.raises(CheckpointRefused, match="No checkpoint may be used"):
        caboose.load_checkpoint(plan, model, [])


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([], "gave no plan within 0.3 s"),
        ([Refused(reason="version", detail="too old")], "refused (version): too old"),
    ],
)
def test_a_daemon_that_does_not_answer_is_named(
    ledger: Callable[..., Ledger], answers: list[Message], reason: str
) -> None:
    daemon = ledger(*answers)
    plan = caboose.resume_plan(job="train", endpoint=daemon.endpoint, timeout=0.3)
    assert (plan.source, plan.checkpoint) == ("disk", None)
    assert plan.reason == f"the daemon at {daemon.endpoint} {reason}"


def test_the_daemon_is_asked_with_the_keys_of_the_environment(
    ledger: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = zmq.curve_keypair()
    _, secret = zmq.curve_keypair()
    daemon = ledger(Plan(job="train", reason="seen"), keys=keys)
    monkeypatch.setenv("CABOOSE_SERVER_KEY", keys[0].decode())
    monkeypatch.setenv("CABOOSE_AGENT_KEY", secret.decode())
    monkeypatch.setenv("CABOOSE_ENDPOINT", daemon.endpoint)
    assert caboose.resume_plan(job="train").reason == "seen"


def test_a_plan_needs_no_torch(tmp_path: Path) -> None:
    path = a_checkpoint(tmp_path, 3)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"import caboose; print(caboose.resume_plan({str(tmp_path)!r}, endpoint={NOBODY!r}, timeout=0.05).checkpoint)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=clean_environment()
    )
    assert ended.stdout.strip() == str(path), ended.stderr
