"""The Lightning callback, on the real Trainer."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from caboose_wire import Bye, Event, StepReport
from support.collector import Collector
from support.norms import grad_norm

lightning = pytest.importorskip("lightning.pytorch", reason="the callback needs it")

from caboose.lightning import CabooseCallback  # noqa: E402 - after the check that it can be imported

pytestmark = [
    pytest.mark.slow,
    # Lightning would like worker processes; for six batches none is enough.
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    # Lightning 2.6 still asks torch for a class that torch 2.13 has deprecated.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]

BATCHES = 6


class Task(lightning.LightningModule):  # type: ignore[misc, name-defined]  # imported at run time
    """Remembers the losses and gradient norms it saw itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.validated: list[float] = []
        self.fail_at = 0

    def training_step(self, batch: Any, index: int) -> Any:
        loss = self.network(batch[0]).pow(2).mean()
        self.losses.append(loss.item())
        self.log("train_loss", loss)
        if len(self.losses) == self.fail_at:
            raise RuntimeError("the loader found a broken shard")
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in self.parameters()])))

    def validation_step(self, batch: Any, index: int) -> None:
        loss = self.network(batch[0]).pow(2).mean()
        self.log("val_loss", loss)
        self.log("val_size", float(batch[0].abs().max()))

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append(float(self.trainer.callback_metrics["val_loss"]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class ByHand(Task):
    """Steps its optimizer itself, every second batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> Any:
        loss = super().training_step(batch, index)
        self.manual_backward(loss)
        if index % 2:
            self.optimizers().step()
            self.optimizers().zero_grad()
        return loss


def batches(count: int = BATCHES) -> Any:
    data = torch.randn(4 * count, 4, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=4)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """These runs are over in a moment; on a busy machine their reports may need longer than that to leave."""
    monkeypatch.setattr("caboose.report.sender.FLUSH_SECONDS", 10.0)


@pytest.fixture
def trainer(tmp_path: Path, listening: Collector) -> Callable[..., Any]:
    def make(**arguments: Any) -> Any:
        settings: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "limit_val_batches": 0,
            "max_epochs": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": tmp_path,
            **arguments,
        }
        settings["callbacks"] = [
            CabooseCallback(job="train", endpoint=listening.endpoint),
            *arguments.get("callbacks", []),
        ]
        return lightning.Trainer(**settings)

    return make


def means(losses: list[float], groups: list[int]) -> list[float]:
    rest = iter(losses)
    return [sum(next(rest) for _ in range(size)) / size for size in groups]


def test_steps_and_losses_are_those_of_the_module(trainer: Callable[..., Any], listening: Collector) -> None:
    task = Task()
    trainer(max_epochs=2, limit_val_batches=2).fit(task, batches(), batches(2))
    listening.wait_for(Bye)
    assert [r.step for r in listening.reports] == list(range(1, 13))
    assert [r.loss for r in listening.reports] == pytest.approx(task.losses, rel=1e-6)
    assert all(r.lr == (0.1,) for r in listening.reports)
    assert listening.hellos[0].wrapper == "Task"
    validations = [m for m in listening.messages if isinstance(m, Event)]
    assert [(e.kind, e.step) for e in validations] == [("validation", 6), ("validation", 12)], "no sanity check"
    assert [e.fields["loss"] for e in validations] == pytest.approx(task.validated)
    assert validations[0].fields.keys() == {"loss", "val_size"}


def test_under_accumulation_a_step_is_a_step_of_the_optimizer(
    trainer: Callable[..., Any], listening: Collector
) -> None:
    """Six batches in steps of four: the last step of each epoch is a shorter one."""
    task = Task()
    trainer(max_epochs=2, accumulate_grad_batches=4).fit(task, batches(), batches(2))
    listening.wait_for(Bye)
    assert [r.step for r in listening.reports] == [1, 2, 3, 4]
    assert [r.loss for r in listening.reports] == pytest.approx(means(task.losses, [4, 2, 4, 2]), rel=1e-6)


def test_gradients_are_those_that_the_optimizer_applies(trainer: Callable[..., Any], listening: Collector) -> None:
    """Lightning runs forward and backward inside of the optimizer's step, as its closure."""
    task = Task()
    trainer().fit(task, batches(), batches(2))
    listening.wait_for(Bye)
    assert [grad_norm(r) for r in listening.reports] == pytest.approx(task.norms, rel=1e-5)


def test_manual_optimization_is_followed(trainer: Callable[..., Any], listening: Collector) -> None:
    task = ByHand()
    trainer().fit(task, batches(), batches(2))
    listening.wait_for(Bye)
    assert [r.step for r in listening.reports] == [1, 2, 3]
    assert [r.loss for r in listening.reports] == pytest.approx(means(task.losses, [2, 2, 2]), rel=1e-6)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")  # the second run keeps no checkpoints
def test_checkpoints_are_told_and_a_resumed_run_continues_its_count(
    trainer: Callable[..., Any], listening: Collector, tmp_path: Path
) -> None:
    keep = lightning.callbacks.ModelCheckpoint(dirpath=tmp_path / "kept", filename="last")
    trainer(enable_checkpointing=True, callbacks=[keep]).fit(Task(), batches(), batches(2))
    listening.wait_for(Bye)
    (saved,) = [m for m in listening.messages if isinstance(m, Event)]
    assert (saved.kind, saved.fields) == ("checkpoint", {"step": 6, "path": str(tmp_path / "kept" / "last.ckpt")})
    trainer(max_epochs=2).fit(Task(), batches(), batches(2), ckpt_path=tmp_path / "kept" / "last.ckpt")
    listening.wait_for(Bye, 2)
    assert [h.start_step for h in listening.hellos] == [0, 6]
    assert [r.step for r in listening.reports] == list(range(1, 13))


def test_every_checkpoint_is_told_by_its_own_file_when_it_is_written(
    trainer: Callable[..., Any], listening: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two callbacks that keep some, and a save by hand; weights alone cannot be resumed from, and are not told."""
    checkpoints = lightning.callbacks.ModelCheckpoint
    every = checkpoints(dirpath=tmp_path / "every", filename="{step}", every_n_train_steps=2, save_top_k=-1)
    weights = checkpoints(dirpath=tmp_path / "weights", every_n_train_steps=3, save_weights_only=True)

    class ByHandToo(lightning.Callback):  # type: ignore[misc, name-defined]  # imported at run time
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 5:
                trainer.save_checkpoint("mine.ckpt")

    monkeypatch.chdir(tmp_path)
    run = trainer(enable_checkpointing=True, callbacks=[every, weights, ByHandToo()])
    run.fit(Task(), batches(), batches(2))
    listening.wait_for(Bye)
    events = [m for m in listening.messages if isinstance(m, Event)]
    told = [(event.fields["step"], event.fields["path"]) for event in events]
    files = {step: str(tmp_path / "every" / f"step={step}.ckpt") for step in (2, 4, 6)}
    assert told == [(2, files[2]), (4, files[4]), (5, str(tmp_path / "mine.ckpt")), (6, files[6])]
    assert all(Path(path).stat().st_mtime <= event.time for event, (_, path) in zip(events, told, strict=True))
    assert any((tmp_path / "weights").iterdir())
    assert "save_checkpoint" not in vars(run), "it is the class's own again"
    run.save_checkpoint(tmp_path / "after.ckpt")
    assert len([m for m in listening.messages if isinstance(m, Event)]) == 4, "nobody watches any more"


def test_an_exception_is_told_and_ends_the_watch(trainer: Callable[..., Any], listening: Collector) -> None:
    task = Task()
    task.fail_at = 3
    run = trainer()
    with pytest.raises(RuntimeError, match="broken shard"):
        run.fit(task, batches(), batches(2))
    listening.wait_for(Bye)
    assert [r.step for r in listening.wait_for(StepReport, 2)] == [1, 2]
    (event,) = [m for m in listening.messages if isinstance(m, Event)]
    assert event.fields == {"error": "RuntimeError: the loader found a broken shard"}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "outcome"),
    [
        (("lightning", "pytorch_lightning"), "caboose.lightning needs Lightning: pip install lightning"),
        (("lightning",), "pytorch_lightning.callbacks.callback"),
    ],
)
def test_either_package_will_do_and_without_one_the_import_names_the_cure(
    missing: tuple[str, ...], outcome: str
) -> None:
    program = f"""
import sys
for name in {missing}:
    sys.modules[name] = None
import caboose
assert "caboose.lightning" not in sys.modules
try:
    from caboose.lightning import CabooseCallback
    print(CabooseCallback.__mro__[1].__module__)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == outcome
