"""Runs of Lightning and of the Hugging Face Trainer go back too, with nothing changed but the callback's argument."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import caboose
from caboose_wire import Ack, Command, Holdings
from support.collector import Collector
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("impatient")]

ORDER_AT, BOUNDARY, TARGET = 12, 15, 5
AUTO: dict[str, Any] = {
    "rollback": caboose.Rollback("auto", snapshots=caboose.Snapshots(every=5)),
    "sampling": caboose.Sampling(overhead_budget=1.0),
}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """These runs are over in a moment; on a busy machine their reports may need longer than that to leave."""
    monkeypatch.setattr("caboose.report.sender.FLUSH_SECONDS", 10.0)


class Orders:
    """Gives the command from inside the run, and remembers the weights around it."""

    def __init__(self, listening: Collector, skip: int = 0) -> None:
        self._daemon = listening
        self._skip = skip
        self.weights: dict[int, torch.Tensor] = {}

    def after(self, step: int, model: torch.nn.Module) -> None:
        self.weights[step] = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
        if step == ORDER_AT:
            assert wait_until(lambda: self._holds(TARGET), 15)
            group = next(m.group for m in self._daemon.messages if isinstance(m, Holdings))
            facts: dict[str, Any] = {"kind": "rollback", "group": group, "world": 1, "skip": self._skip}
            facts["expires"] = time.time() + 60
            self._daemon.say(Command(number=2, boundary=BOUNDARY, target=TARGET, lr_scale=0.5, **facts))
            assert wait_until(lambda: self.outcomes(2), 15) == ["accepted"]

    def _holds(self, step: int) -> bool:
        held = [m for m in self._daemon.messages if isinstance(m, Holdings)]
        return bool(held) and any(s.step == step and s.is_ready for s in held[-1].snapshots)

    def outcomes(self, number: int) -> list[str]:
        return [m.outcome for m in self._daemon.messages if isinstance(m, Ack) and m.command == number]

    def check(self) -> None:
        assert wait_until(lambda: self.outcomes(2) == ["accepted", "done"], 15)
        assert torch.equal(self.weights[BOUNDARY], self.weights[TARGET])
        assert not torch.equal(self.weights[BOUNDARY + 1], self.weights[TARGET])
        later = [(r.step, r.model_step) for r in self._daemon.reports if r.attempt == 1]
        assert later[:2] == [(BOUNDARY + 1, TARGET + 1), (BOUNDARY + 2, TARGET + 2)]


# Lightning would like worker processes, and still asks torch for a class that torch 2.13 has deprecated.
@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("skip", "first", "second"), [(2, [*range(15), 17, 18, 19], [*range(20)]), (8, [*range(15), 19], [*range(4, 20)])]
)
def test_a_lightning_run_goes_back_and_skips_batches(
    listening: Collector, tmp_path: Path, skip: int, first: list[int], second: list[int]
) -> None:
    """Skipped batches count as done, and an epoch ends with its last batch: with its validation and its schedule."""
    lightning = pytest.importorskip("lightning.pytorch")
    from caboose.lightning import CabooseCallback

    orders, given, validated = Orders(listening, skip=skip), [], []

    class Told(lightning.Callback):  # type: ignore[misc, name-defined]  # imported at run time
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            orders.after(trainer.global_step, pl_module)

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            validated.append((trainer.current_epoch, trainer.global_step))

    class Task(lightning.LightningModule):  # type: ignore[misc, name-defined]  # as above
        def __init__(self) -> None:
            super().__init__()
            self.network = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            given.append((index, tuple(batch[0][:, 0].tolist())))
            return self.network(batch[0]).pow(2).mean()

        def validation_step(self, batch: Any, index: int) -> Any:
            return self.network(batch[0]).pow(2).mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            by_step = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
            by_epoch = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
            return [optimizer], [{"scheduler": by_step, "interval": "step"}, by_epoch]

    samples = torch.utils.data.TensorDataset(torch.randn(80, 4))
    data = torch.utils.data.DataLoader(samples, batch_size=4)  # an epoch of 20 steps
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[CabooseCallback(job="train", endpoint=listening.endpoint, **AUTO), Told()],
    )
    trainer.fit(Task(), data, torch.utils.data.DataLoader(samples, batch_size=40))
    orders.check()
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.005), "whatever its two schedules do next"
    assert [m.can_skip for m in listening.messages if isinstance(m, Holdings)][-1]
    assert [index for index, _ in given] == [*first, *second]
    assert len({sample for _, batch in given[: len(first)] for sample in batch}) == 4 * len(first)
    assert validated == [(0, len(first)), (1, len(first) + len(second))]


def test_a_run_of_the_hugging_face_trainer_goes_back_and_skips_batches(listening: Collector, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from caboose.huggingface import CabooseCallback

    orders, given = Orders(listening, skip=2), []

    class Told(transformers.TrainerCallback):  # type: ignore[misc, name-defined]  # imported at run time
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            orders.after(state.global_step, kwargs["model"])

    class Task(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = torch.nn.Linear(4, 1)

        def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            given.append(tuple(inputs[:, 0].tolist()))
            return {"loss": self.network(inputs).pow(2).mean()}

    samples = [{"inputs": torch.randn(4)} for _ in range(80)]  # an epoch of 20 steps
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=4,
        learning_rate=0.01,
        max_steps=30,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    callback = CabooseCallback(job="train", endpoint=listening.endpoint, **AUTO)
    transformers.Trainer(Task(), arguments, train_dataset=samples, callbacks=[callback, Told()]).train()
    orders.check()
    assert [m.can_skip for m in listening.messages if isinstance(m, Holdings)][-1]
    assert len(given) == 30, "as many steps as were asked for, in a longer part of the second epoch"
    assert len({sample for batch in given[:18] for sample in batch}) == 72
    assert len({sample for batch in given[:20] for sample in batch}) < 80, "two were of the next epoch"
