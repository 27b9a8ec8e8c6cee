"""Checkpoints of one process without a process group: what is kept, what is refused and why, and what may be saved."""

import json
import os
import random
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import caboose
from caboose.checkpoints import layout, manifest, plain
from caboose.checkpoints.checkpointer import Checkpointer
from caboose.checkpoints.errors import CheckpointFailed, CheckpointRefused
from caboose.checkpoints.writing import superseded
from caboose_wire import Terms


class Run:
    """A small run with everything a checkpoint can hold."""

    def __init__(self, directory: Path, *, seed: int = 0, extra: Any = (), **options: Any) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=100)
        self.checkpointer = Checkpointer(
            directory, self.model, [self.optimizer], [self.scheduler], None, extra, **options
        )

    def train(self, num_steps: int) -> list[float]:
        losses = []
        for _ in range(num_steps):
            loss = self.model(torch.randn(8, 4)).square().mean() * random.random()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            losses.append(loss.item())
        return losses


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints, of steps 2 and 4."""
    directory = tmp_path_factory.mktemp("saved")
    run = Run(directory)
    for step in (2, 4):
        run.train(2)
        assert run.checkpointer.save(step, step).state == "saved"
    return directory


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    """A copy of them, to do with as one likes."""
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_continues_bit_exactly_and_in_place(tmp_path: Path, is_async: bool) -> None:
    run = Run(tmp_path, is_async=is_async)
    run.train(3)
    saved = run.checkpointer.save(3, 3, raise_errors=True)
    assert saved.state == ("writing" if is_async else "saved")
    expected = run.train(3)
    run.checkpointer.close(30)
    other = Run(tmp_path, seed=5)
    other.train(1)
    places = [p.data_ptr() for p in other.model.parameters()]
    places += [t.data_ptr() for p in other.model.parameters() for t in other.optimizer.state[p].values()]

    loaded = other.checkpointer.load(tmp_path / "step-3")

    assert (loaded.step, loaded.model_step, loaded.lost) == (3, 3, ())
    assert other.train(3) == expected
    now = [p.data_ptr() for p in other.model.parameters()]
    assert places == now + [t.data_ptr() for p in other.model.parameters() for t in other.optimizer.state[p].values()]


def test_several_optimizers_a_scaler_and_parameters_without_state_come_back(tmp_path: Path) -> None:
    def a_run(scale: float) -> tuple[list[torch.nn.Linear], list[torch.optim.Optimizer], torch.amp.GradScaler]:
        layers = [torch.nn.Linear(2, 2) for _ in range(3)]  # the last one is never used
        layers[1].bias.requires_grad_(False)
        first = torch.optim.Adam([*layers[0].parameters(), *layers[2].parameters()], lr=torch.tensor(scale))
        plain_one = torch.optim.SGD(layers[1].parameters(), lr=scale)  # without momentum, and so without any state
        return layers, [first, plain_one], torch.amp.GradScaler("cpu", init_scale=scale)

    layers, optimizers, scaler = a_run(0.25)
    layers[1](layers[0](torch.ones(1, 2))).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    Checkpointer(tmp_path, torch.nn.ModuleList(layers), optimizers, (), scaler).save(1, 1, raise_errors=True)
    others, other_optimizers, other_scaler = a_run(8.0)
    rate = other_optimizers[0].param_groups[0]["lr"]
    Checkpointer(tmp_path, torch.nn.ModuleList(others), other_optimizers, (), other_scaler).load(tmp_path / "step-1")

    assert all(torch.equal(a.weight, b.weight) for a, b in zip(layers, others, strict=True))
    assert other_optimizers[0].param_groups[0]["lr"] is rate, "which a compiled step may hold"
    assert (float(rate), other_optimizers[1].param_groups[0]["lr"], other_scaler.get_scale()) == (0.25, 0.25, 0.25)
    assert set(other_optimizers[0].state) == set(others[0].parameters())
    assert torch.equal(
        optimizers[0].state[layers[0].weight]["exp_avg"], other_optimizers[0].state[others[0].weight]["exp_avg"]
    )
    assert not other_optimizers[1].state


def test_saves_in_the_background_are_taken_one_after_the_other_and_told_once(tmp_path: Path) -> None:
    run = Run(tmp_path, is_async=True)
    run.train(1)
    for step in (1, 2):
        assert run.checkpointer.save(step, step).state == "writing"
    assert run.checkpointer.wait(30)
    told = [run.checkpointer.poll(), run.checkpointer.poll()]
    assert [(saved.step, saved.state) for saved in told if saved is not None] == [(1, "saved"), (2, "saved")]
    assert run.checkpointer.poll() is None
    run.checkpointer.close()


def test_loading_runs_no_step_of_the_optimizer(directory: Path) -> None:
    run = Run(directory, seed=3)
    run.optimizer.register_step_pre_hook(lambda *_: pytest.fail("a step was taken"))
    run.checkpointer.load(directory / "step-4")
    assert run.optimizer.state[run.model[0].weight]["step"] == 4  # type: ignore[index]  # a Sequential


# What is refused


def cut_short(path: Path) -> None:
    file = path / "__0_0.distcp"
    os.truncate(file, file.stat().st_size - 1)


def flipped(path: Path) -> None:
    content = bytearray((path / "__0_0.distcp").read_bytes())
    content[1000] ^= 4
    (path / "__0_0.distcp").write_bytes(content)


def without_manifest(path: Path) -> None:
    (path / layout.MANIFEST).unlink()


def rewritten(**changes: Any) -> Callable[[Path], None]:
    """Another manifest, as whole as the old one."""

    def change(path: Path) -> None:
        manifest.write(path, msgspec.structs.replace(manifest.read(path), **changes))

    return change


def edited(path: Path) -> None:
    text = (path / layout.MANIFEST).read_text()
    (path / layout.MANIFEST).write_text(text.replace('"step":4', '"step":9'))


def misled(path: Path) -> None:
    """An index that leads outside of the checkpoint."""
    text = (path / layout.INDEX).read_text().replace("__0_0.distcp", "../step-2/__0_0.distcp")
    (path / layout.INDEX).write_text(text)
    files = {name: manifest.described(path / name) for name in manifest.read(path).files}
    rewritten(files=files)(path)


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut short": (cut_short, r"__0_0\.distcp has \d+ bytes, \d+ were written"),
    "a flipped bit": (flipped, r"__0_0\.distcp is damaged: its checksum does not match"),
    "a missing file": (lambda path: (path / layout.SHARED).unlink(), r"shared\.json is missing"),
    "no manifest": (without_manifest, r"it has no caboose\.json: it was not finished, or Caboose did not write it"),
    "an empty manifest": (lambda path: (path / layout.MANIFEST).write_bytes(b""), r"caboose\.json is damaged: .+"),
    "an edited manifest": (edited, r"caboose\.json is damaged: its checksum does not match"),
    "a newer format": (rewritten(format=2), r"a newer Caboose wrote it \(format 2, this one reads up to 1\)"),
    "another world size": (rewritten(world=8), r"8 ranks wrote it and 1 would load it: each rank's own state \(random"),
    "an index that leads away": (misled, r"index\.json names '\.\./step-2/__0_0\.distcp', which is not part of it"),
    "not there": (shutil.rmtree, "there is no such directory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_whole_is_refused_with_the_reason_and_changes_nothing(directory: Path, name: str) -> None:
    damage, reason = REFUSED[name]
    damage(directory / "step-4")
    run = Run(directory, seed=7)
    before = [p.clone() for p in run.model.parameters()]
    with pytest.raises(CheckpointRefused, match=f"step-4: {reason}"):
        run.checkpointer.load(directory / "step-4")
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))
    assert not run.optimizer.state

    plan = caboose.ResumePlan(checkpoint=str(directory / "step-4"), step=4, others=(str(directory / "step-2"),))
    loaded = caboose.load_checkpoint(plan, run.model, run.optimizer, scheduler=run.scheduler)
    assert loaded is not None
    assert loaded.step == 2, "the next best is used"


def test_the_next_best_has_a_learning_rate_of_its_own(directory: Path) -> None:
    shutil.rmtree(directory / "step-4")
    run = Run(directory)
    saved = caboose.load_checkpoint(directory / "step-2", run.model, run.optimizer, scheduler=run.scheduler)
    assert saved is not None
    (was,) = {group["lr"] for group in run.optimizer.param_groups}

    other = str(directory / "step-2")
    plan = caboose.ResumePlan(
        checkpoint=str(directory / "step-4"), step=4, others=(other,), lr_scale=0.5, lr_scales={other: 0.25}
    )
    caboose.load_checkpoint(plan, run.model, run.optimizer, scheduler=run.scheduler)

    assert {group["lr"] for group in run.optimizer.param_groups} == {0.25 * was}


def test_a_checkpoint_of_another_model_or_optimizer_is_refused(directory: Path) -> None:
    run = Run(directory)
    wider = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 1))
    others: list[tuple[Any, Any, str]] = [
        (
            wider,
            torch.optim.AdamW(wider.parameters()),
            r"another model: 0\.weight is \[6, 4\] in it and \[7, 4\] in the",
        ),
        (
            run.model[0],
            torch.optim.AdamW(run.model[0].parameters()),
            "another model: it lacks bias, weight and the model",
        ),  # type: ignore[index]
        (run.model, torch.optim.SGD(run.model.parameters()), "optimizer 0 was a AdamW and is a SGD"),
        (run.model, [torch.optim.AdamW(run.model.parameters())] * 2, "it holds 1 optimizers and the run has 2"),
        (run.model, torch.optim.AdamW([{"params": [p]} for p in run.model.parameters()]), "hold other parameters than"),
    ]
    for model, optimizer, reason in others:
        with pytest.raises(CheckpointRefused, match=reason):
            caboose.load_checkpoint(directory / "step-4", model, optimizer, scheduler=run.scheduler)
    with pytest.raises(
        CheckpointRefused, match="it holds the state of scheduler and the run has nothing; strict=False"
    ):
        caboose.load_checkpoint(directory / "step-4", run.model, run.optimizer)
    with pytest.raises(CheckpointRefused, match=r"0\.weight is float32 in it and bfloat16 in the model"):
        caboose.load_checkpoint(directory / "step-4", run.model.bfloat16(), run.optimizer, scheduler=run.scheduler)


def test_nothing_in_a_checkpoint_is_unpickled(directory: Path) -> None:
    path, touched = directory / "step-4", directory / "touched"
    (path / ".metadata").write_bytes(f"cos\nsystem\n(S'touch {touched}'\ntR.".encode())
    files = {name: manifest.described(path / name) for name in manifest.read(path).files}
    rewritten(files=files)(path)
    run = Run(directory, seed=7)
    assert run.checkpointer.load(path).step == 4
    assert not touched.exists()


def test_torch_alone_can_read_the_tensors(directory: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    found = FileSystemReader(directory / "step-4").read_metadata().state_dict_metadata
    assert {"model.0.weight", "model.1.running_mean", "optimizer.0.state.0.weight.exp_avg"} <= set(found)


# What goes wrong while saving


def test_a_failed_save_is_a_result_leaves_nothing_and_is_logged_once(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    failed = []
    try:
        for name in ("a", "b"):
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
            (elsewhere / name).write_bytes(bytes(8 << 20))  # so the disk is never twice as full
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, usual[1]))  # as on a full disk
            failed.append(run.checkpointer.save(1, 1))
        with pytest.raises(CheckpointFailed, match="File too large"):
            run.checkpointer.save(1, 1, raise_errors=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        signal.signal(signal.SIGXFSZ, handler)
    assert [saved.state for saved in failed] == ["failed", "failed"]
    assert "File too large" in failed[0].error
    assert list(tmp_path.iterdir()) == []
    assert [r.message for r in caplog.records if r.name == "caboose"] == [
        f"caboose: the checkpoint of step 1 was not saved: {failed[0].error}"
    ]
    assert run.checkpointer.save(2, 2).state == "saved", "when there is room again"


def test_a_failed_save_in_the_background_is_raised_by_the_next_call_that_asks_polled_or_not(tmp_path: Path) -> None:
    """Ranks poll at their own time; those that have must not go on alone."""
    for is_polled in (True, False):
        target = tmp_path / f"{is_polled}"
        target.write_text("a file where the directory should be")
        run = Run(target, is_async=True)
        assert run.checkpointer.save(1, 1).state == "writing"
        run.checkpointer.wait()
        if is_polled:
            polled = run.checkpointer.poll()
            assert polled is not None
            assert polled.state == "failed"
        target.unlink()
        with pytest.raises(CheckpointFailed):
            run.checkpointer.save(2, 2, raise_errors=True)
        assert run.checkpointer.save(3, 3, raise_errors=True).state == "writing", "once"
        run.checkpointer.close()


def test_leftovers_of_a_killed_run_are_removed_by_the_next_save(directory: Path) -> None:
    for name in ("step-6.incomplete", "step-4.removed.incomplete"):
        shutil.copytree(directory / "step-4", directory / name)
    Run(directory).checkpointer.save(6, 6, raise_errors=True)
    assert sorted(path.name for path in directory.iterdir()) == ["step-2", "step-4", "step-6"]


def test_a_step_that_is_saved_again_replaces_what_an_earlier_attempt_left(directory: Path) -> None:
    run = Run(directory, seed=9)
    assert run.checkpointer.save(4, 1).state == "saved"
    assert manifest.read(directory / "step-4").model_step == 1
    assert sorted(path.name for path in directory.iterdir()) == ["step-2", "step-4"]


class Thing:
    """An extra with any state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_state_that_could_only_be_pickled_is_named(tmp_path: Path) -> None:
    saved = Run(tmp_path, extra=[Thing({"how": {"deep": object()}})]).checkpointer.save(1, 1)
    assert saved.state == "failed"
    assert "part.extra.0.how.deep is a object, which can only be pickled, and Caboose does not" in saved.error
    with pytest.raises(TypeError, match=r"extra\.0 is a int; what is saved needs state_dict\(\) and load_state_dict"):
        Run(tmp_path, extra=[3])


def test_whatever_a_state_dict_usually_holds_comes_back_as_it_was() -> None:
    state = {
        "numbers": [1, -2.5, True, None, float("-inf"), 2**80],
        3: ("text", b"bytes", {4, 5}),
        "counter": Counter({7: 2}),
        "array": np.arange(3, dtype=np.uint32),
        "scalar": np.float32(0.1),
        "torch": (torch.float16, torch.device("cpu"), torch.Size([1, 2])),
        "tensor": torch.arange(4),
    }
    tensors: dict[str, torch.Tensor] = {}
    tree = json.loads(json.dumps(plain.encode(state, "key", tensors), allow_nan=False))
    back = plain.decode(tree, tensors)
    assert torch.equal(back.pop("tensor"), torch.arange(4))
    assert back.pop("array").tolist() == [0, 1, 2]
    assert isinstance(back["counter"], Counter)
    assert isinstance(back["scalar"], np.float32)
    assert back == {name: value for name, value in state.items() if name not in ("tensor", "array")}
    assert sorted(plain.keys_in(tree)) == ["key.array", "key.scalar", "key.tensor"]


# What is kept


@pytest.mark.parametrize(
    ("marks", "gone"),
    [
        ({}, [1, 2, 3]),
        ({"wanted": [2]}, [1, 3]),
        ({"wanted": [1, 3]}, [2]),
        ({"tainted": [5, 6]}, [1, 2, 3]),
        ({"tainted": [3, 4, 5, 6]}, [1, 3]),
        ({"tainted": [1, 2, 3, 4, 5, 6]}, [1, 2, 3]),
    ],
)
def test_the_newest_the_wanted_and_the_last_sound_one_are_kept(marks: dict[str, list[int]], gone: list[int]) -> None:
    assert superseded(range(1, 7), keep=3, **marks) == gone


def test_marks_on_disk_keep_checkpoints_from_going(directory: Path) -> None:
    run = Run(directory, keep=1)
    run.checkpointer.mark(2, "best")
    run.checkpointer.mark(4, "best")
    run.checkpointer.mark(2, "pinned")
    for step in (6, 8):
        run.checkpointer.save(step, step, raise_errors=True)
    assert sorted(path.name for path in directory.iterdir()) == ["step-2", "step-4", "step-8"]
    run.checkpointer.mark(2, "pinned", is_on=False)
    run.checkpointer.mark(8, "best")
    run.checkpointer.save(10, 10, raise_errors=True)
    assert sorted(path.name for path in directory.iterdir()) == ["step-10", "step-8"]


def test_the_newest_that_is_proven_healthy_stays_until_a_newer_one_is(directory: Path) -> None:
    run = Run(directory, keep=1)
    run.checkpointer.apply_terms(Terms(healthy=2))
    for step in (6, 8):
        run.checkpointer.save(step, step, raise_errors=True)
    assert sorted(path.name for path in directory.iterdir()) == ["step-2", "step-8"], "8 may turn out to be tainted"
    run.checkpointer.apply_terms(Terms(healthy=8))
    run.checkpointer.save(10, 10, raise_errors=True)
    assert sorted(path.name for path in directory.iterdir()) == ["step-10", "step-8"]


class InPieces(torch.optim.SGD):
    """As ZeroRedundancyOptimizer, which needs ranks."""

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Its state lies across the ranks until this is called."""


def test_arguments_that_cannot_be_right_are_said_at_once(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="InPieces keeps its state in pieces that only it can put together"):
        Checkpointer(tmp_path, model, [InPieces(model.parameters())])
    with pytest.raises(ValueError, match="rank 1 of 2 is to be saved, but the process group says rank 0 of 1"):
        Run(tmp_path, rank=1, world=2)
