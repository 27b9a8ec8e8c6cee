"""The loops that people write: plain, with accumulation, with autocast, under DDP and under FSDP2."""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

import caboose
from caboose_drills.randomised import losses, models, optimizers, tasks
from caboose_drills.randomised.batches import Batches, Record, evaluate
from caboose_drills.randomised.faults import waste
from caboose_drills.randomised.plan import Data, Loss, Plan, Tensors
from caboose_drills.run import DrillRun

KEPT = 60_000
"""Numbers that a loop with a growing list keeps of each step."""


def train(run: DrillRun, plan: Plan) -> Record:
    """Trains the plan; what it did."""
    return Training(run, plan).whole()


class Training:
    """One run of a plan in a loop of its own."""

    def __init__(self, run: DrillRun, plan: Plan) -> None:
        self.run, self.plan = run, plan
        self.data: Data = tasks.build(plan)
        self.right, self.quality = losses.build(plan), losses.quality(plan)
        self.loss: Loss = self.right
        for edit in plan.edit_loss:
            self.loss = edit(self.loss)
        self.record = Record(plan)
        self.kept: list[Tensor] = []
        self.step = 0
        self._build()

    def _build(self) -> None:
        plan = self.plan
        model = models.build(plan, self.data)
        if plan.precision == "bfloat16 weights":
            model = model.to(torch.bfloat16)
        if plan.draw.loop == "fsdp2":
            for child in model.children():
                if any(True for _ in child.parameters()) and not isinstance(child, nn.ModuleList):
                    fully_shard(child)
            fully_shard(model)
        self.optimizers = optimizers.build(plan, model)
        if plan.draw.loop == "ddp":
            has_unused = plan.draw.disease in ("frozen", "detached")
            model = DistributedDataParallel(model, find_unused_parameters=has_unused)
        self.model = model
        self.schedulers = [LambdaLR(optimizer, plan.factor) for optimizer in self.optimizers]
        # Without a device GradScaler works on the CPU, where autocast takes float16 too.
        self.scaler = torch.amp.GradScaler("cpu") if plan.precision == "float16" else None

    def whole(self) -> Record:
        """Until the last step, in two attempts where the run is resumed."""
        self.record.first = self._quality()
        self._attempt(self.plan.restarts_at or self.plan.steps)
        if self.plan.restarts_at is not None:
            weights = copy.deepcopy(self.model.state_dict())
            states = [copy.deepcopy(optimizer.state_dict()) for optimizer in self.optimizers]
            self._build()
            self.model.load_state_dict(weights)
            for optimizer, state in zip(self.optimizers, states, strict=True):
                optimizer.load_state_dict(state)
            self.schedulers = [LambdaLR(optimizer, self.plan.factor) for optimizer in self.optimizers]
            self._attempt(self.plan.steps)
        self.record.final = self._quality()
        return self.record

    def _attempt(self, last: int) -> None:
        plan = self.plan
        monitor = self.run.attach(
            self.model,
            self.optimizers if len(self.optimizers) > 1 else self.optimizers[0],
            scheduler=self.schedulers if len(self.schedulers) > 1 else self.schedulers[0],
            scaler=self.scaler,
            num_classes=self.data.num_classes,
            start_step=self.step,
            sample_every=plan.draw.sample_every,
            objective="reinforcement" if plan.draw.family == "rl" and plan.draw.seed % 2 else None,
            hunt=plan.draw.seed % 4 == 0,
        )
        size = plan.batch
        while self.step < last:
            if plan.batch_from is not None and self.step >= plan.batch_from[0]:
                size = plan.batch_from[1] * plan.micro_batches
            self._pass(monitor, Batches(plan, self.data, max(1, size // plan.micro_batches), self.step), last)

    def _pass(self, monitor: caboose.Monitor, loader: Batches, last: int) -> None:
        """An epoch, or less where the run ends or the batch size changes."""
        plan, seen = self.plan, 0
        parts: list[Tensor] = []
        for batch in monitor.watch(loader):
            if not parts and plan.zeroes_gradients:
                for optimizer in self.optimizers:
                    optimizer.zero_grad()
            parts.append(self._backward(batch))
            seen += len(batch[0])
            if len(parts) < plan.micro_batches:
                continue
            self.step += 1
            self._update()
            value = torch.stack(parts).mean()
            if plan.step_delay is not None:
                waste(plan.step_delay(self.step))
            monitor.step(value, num_samples=seen)
            self.record.step(float(value))
            if self.step % plan.draw.validate_every == 0:
                self._validate(monitor)
            self.run.progress(self.step)
            parts, seen = [], 0
            if self.step >= last or (plan.batch_from is not None and self.step == plan.batch_from[0]):
                return

    def _backward(self, batch: Tensors) -> Tensor:
        plan = self.plan
        if plan.precision == "bfloat16 weights":
            batch = in_bfloat16(batch)
        with self._precision():
            value = self.loss(self.model, batch)
        if plan.keeps_graphs:
            self.kept.append(batch[0].float().flatten().repeat(KEPT // batch[0].numel() + 1))
            waste(0.0 * float(sum(part.sum() for part in self.kept)))
        scaled = value / plan.micro_batches
        (scaled if self.scaler is None else self.scaler.scale(scaled)).backward()  # type: ignore[no-untyped-call]  # torch gives no types
        return value.detach()

    def _precision(self) -> AbstractContextManager[Any]:
        if self.plan.precision == "float16":
            return torch.autocast("cpu", torch.float16)
        return torch.autocast("cpu", torch.bfloat16) if self.plan.draw.loop == "amp" else nullcontext()

    def _update(self) -> None:
        if self.plan.clip is not None:
            if self.scaler is not None:
                for optimizer in self.optimizers:
                    self.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)
        for optimizer in self.optimizers:
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
        if self.scaler is not None:
            self.scaler.update()
        for scheduler in self.schedulers:
            scheduler.step()

    def _validate(self, monitor: caboose.Monitor) -> None:
        held = self.data.held if self.plan.edit_held is None else self.plan.edit_held(self.data.held)
        value, accuracy = self._evaluate(held)
        self.record.reported.append(value)
        monitor.validation(value, **({} if accuracy is None else {"accuracy": accuracy}))
        if self.plan.eval_from is not None and self.step >= self.plan.eval_from:
            self.model.eval()

    def _quality(self) -> float:
        return self._evaluate(self.data.held, self.quality)[0]

    def _evaluate(self, held: Tensors, loss: Loss | None = None) -> tuple[float, float | None]:
        model = self.model.module if isinstance(self.model, DistributedDataParallel) else self.model
        if self.plan.precision == "bfloat16 weights":
            held = in_bfloat16(held)
        return evaluate(model, loss or self.right, held, self.data.num_classes)


def in_bfloat16(batch: Tensors) -> Tensors:
    """The batch with its real numbers in bfloat16."""
    return tuple(t.to(torch.bfloat16) if t.is_floating_point() else t for t in batch)
