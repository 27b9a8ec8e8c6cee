"""The same runs under the Hugging Face Trainer and Lightning: the framework owns the loop."""

import tempfile
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

import caboose
from caboose_drills.randomised import losses, models, optimizers, tasks
from caboose_drills.randomised.batches import Record, evaluate
from caboose_drills.randomised.faults import waste
from caboose_drills.randomised.plan import Data, Loss, Plan, Tensors
from caboose_drills.run import DrillRun


class Wrapped(nn.Module):
    """A model with its loss, as a framework calls it; counts the batches that it trains on."""

    def __init__(self, model: nn.Module, loss: Loss, right: Loss, plan: Plan, record: Record) -> None:
        super().__init__()
        self.model = model
        self._loss, self._right, self._plan, self._record = loss, right, plan, record
        self.step = 0

    def forward(self, *batch: Tensor) -> Tensor:
        if not self.training:
            return self._right(self.model, batch)
        self.step += 1
        value = self._loss(self.model, batch)
        self._record.step(float(value.detach()))
        return value


class Dictionaries(nn.Module):
    """The wrapped model as the Trainer calls it: with names, and a dictionary for an answer."""

    def __init__(self, inner: Wrapped) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, return_loss: bool = True, **batch: Tensor) -> dict[str, Tensor]:
        return {"loss": self.inner(*(batch[name] for name in sorted(batch)))}


class Parts:
    """Everything that both frameworks need of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.record = plan, Record(plan)
        self.data: Data = tasks.build(plan)
        self.right = losses.build(plan)
        loss: Loss = self.right
        for edit in plan.edit_loss:
            loss = edit(loss)
        self.model = models.build(plan, self.data)
        self.wrapped = Wrapped(self.model, loss, self.right, plan, self.record)
        self.num_seen = 0

    def collate(self, rows: list[Tensors]) -> Tensors:
        """A batch, as the disease spoils it, in the time that it takes. Without workers it is that of the next step."""
        batch: Tensors = tuple(torch.stack(column) for column in zip(*rows, strict=True))
        self.num_seen += 1
        if self.plan.batch_delay is not None:
            waste(self.plan.batch_delay(self.num_seen))
        return batch if self.plan.spoil is None else self.plan.spoil(self.num_seen, batch)

    @property
    def held(self) -> Tensors:
        """What validation reads."""
        return self.data.held if self.plan.edit_held is None else self.plan.edit_held(self.data.held)

    def quality(self) -> float:
        """The right loss on the held-out samples."""
        return evaluate(self.model, self.right, self.data.held, None)[0]


def hugging_face(run: DrillRun, plan: Plan) -> Record:
    """Trains with transformers' Trainer."""
    from transformers import Trainer, TrainingArguments

    from caboose.integrations.huggingface import CabooseCallback

    parts = Parts(plan)
    model = Dictionaries(parts.wrapped)
    made = optimizers.build(plan, model)
    made = made[-1:] if len(made) > 1 else made
    callback = CabooseCallback(**options(run, parts))
    evaluations = parts.record.reported

    class Noting(Trainer):
        def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            metrics: dict[str, float] = super().evaluate(*args, **kwargs)
            evaluations.append(metrics.get("eval_loss", float("nan")))
            return metrics

        def get_train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(
                TensorDataset(*parts.data.train), plan.batch, shuffle=True, drop_last=True, collate_fn=self._spoiled
            )

        def _spoiled(self, rows: list[Tensors]) -> dict[str, Tensor]:
            return named(parts.collate(rows))

    with tempfile.TemporaryDirectory(prefix="caboose-randomised-") as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            max_steps=plan.steps,
            per_device_train_batch_size=plan.batch,
            per_device_eval_batch_size=400,
            max_grad_norm=plan.clip or 0.0,
            eval_strategy="steps",
            eval_steps=plan.draw.validate_every,
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=plan.draw.seed,
            remove_unused_columns=False,
            label_names=[],
            prediction_loss_only=True,
        )
        trainer = Noting(
            model=model,
            args=arguments,
            train_dataset=TensorDataset(*parts.data.train),
            eval_dataset=TensorDataset(*parts.held),
            data_collator=lambda rows: named(tuple(torch.stack(c) for c in zip(*rows, strict=True))),
            optimizers=(made[0], LambdaLR(made[0], plan.factor)),
            callbacks=[callback],
        )
        parts.record.first = parts.quality()
        trainer.train()
        parts.record.final = parts.quality()
    return parts.record


def named(batch: Tensors) -> dict[str, Tensor]:
    """The batch as a dictionary, in the order of its names."""
    return {f"part{number}": tensor for number, tensor in enumerate(batch)}


def options(run: DrillRun, parts: Parts) -> dict[str, Any]:
    """What a callback gives to attach."""
    sampling = caboose.Sampling(parts.plan.draw.sample_every, overhead_budget=1.0)
    return {"job": run.job, "sampling": sampling, "num_classes": parts.data.num_classes}


def lightning(run: DrillRun, plan: Plan) -> Record:
    """Trains with Lightning's Trainer."""
    warnings.filterwarnings("ignore")
    from lightning.pytorch import LightningModule, Trainer

    from caboose.integrations.lightning import CabooseCallback

    parts = Parts(plan)

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = parts.wrapped

        def training_step(self, batch: Tensors, _: int) -> Tensor:
            value: Tensor = self.inner(*batch)
            return value

        def validation_step(self, batch: Tensors, _: int) -> None:
            value = self.inner(*batch)
            parts.record.reported.append(float(value))
            self.log("val_loss", value)

        def configure_optimizers(self) -> Any:
            made = optimizers.build(plan, self.inner)[-1]
            return {
                "optimizer": made,
                "lr_scheduler": {"scheduler": LambdaLR(made, plan.factor), "interval": "step"},
            }

    trainer = Trainer(
        max_steps=plan.steps,
        gradient_clip_val=plan.clip,
        val_check_interval=plan.draw.validate_every,
        check_val_every_n_epoch=None,
        callbacks=[CabooseCallback(**options(run, parts))],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    train_set = TensorDataset(*parts.data.train)
    loader = DataLoader(train_set, plan.batch, shuffle=True, drop_last=True, collate_fn=parts.collate)
    parts.record.first = parts.quality()
    trainer.fit(Module(), loader, DataLoader(TensorDataset(*parts.held), 400))
    parts.record.final = parts.quality()
    return parts.record
