"""A trial: the user's model, loss and optimizer make some steps, and then everything is restored.

Design
------
`with Trial(...) as trial` records parameters, buffers, gradients, modes, hooks, plain attributes, optimizer, scheduler,
the loss function's modules, and random states, on the host, and restores them when the block ends, also by an exception
or Ctrl-C; `rewind` does so in between. Existing gradients are set aside. Hooks on the optimizer's step (an average of
weights, say) do not run: what they write could not be restored. A compiled model runs eagerly, so that nothing is
compiled for a trial.
"""

import contextlib
import copy
import inspect
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import distributed as dist

from caboose.observe import made_state
from caboose.observe.opaque import is_compiled
from caboose.report import live_monitors
from caboose.tensors.random_states import RandomStates
from caboose.tensors.shards import is_fsdp, reshard
from caboose.trials import supported
from caboose.trials.batches import Split, fresh, on_device, parted
from caboose.trials.loss_kind import describe, kind_of, name_of, settle
from caboose.trials.loss_modules import modules_of_loss
from caboose.trials.ranks import Ranks
from caboose.trials.restore_state import Kept

LossFunction = Callable[..., Any]


class Trial:
    """One model that is tried and restored."""

    def __init__(
        self,
        tool: str,
        model: torch.nn.Module,
        loss_fn: LossFunction,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        *,
        scheduler: Any = None,
        split: Split | None = None,
        needs_optimizer: bool = False,
    ) -> None:
        many = isinstance(optimizer, Sequence)
        given: Any = [] if optimizer is None else optimizer if many else [optimizer]
        self.optimizers: list[torch.optim.Optimizer] = list(given)
        supported.check(tool, model, loss_fn, self.optimizers, needs_optimizer=needs_optimizer)
        self.tool = tool
        self.is_sharded = is_fsdp(model)
        self.whole = model
        """As it was given."""
        inner, replicas = unwrapped(model)
        self.model: torch.nn.Module = inner
        """The called module: inside DDP and torch.compile."""
        self.needs_all_gradients = replicas is not None and not (
            replicas.find_unused_parameters or getattr(replicas, "static_graph", False)
        )
        """Whether DDP waits for a gradient of each parameter in every backward."""
        self.parameters = list(self.model.parameters())
        self.device = self.parameters[0].device
        group = replicas.process_group if replicas is not None else dist.group.WORLD if self.is_sharded else None
        self.ranks = Ranks(group, self.device, is_replicated=replicas is not None)
        self.meets_inside = self.is_sharded or any(isinstance(m, torch.nn.SyncBatchNorm) for m in inner.modules())
        """Whether the forward communicates with other ranks."""
        self._loss_fn = loss_fn
        self._kind = kind_of(loss_fn)
        if self._kind == "unknown" and self.meets_inside and self.ranks.num > 1:
            self._kind = "of model and batch"  # a forward that is tried would wait for the other ranks
        self.split = split
        self.scheduler = scheduler
        self._kept = Kept(follows_objects=True)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Trial":
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _begin(self) -> None:
        self._stack.enter_context(made_state.paused())
        self._stack.enter_context(live_monitors.paused())
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)  # a snapshot may be reading the weights
        reshard(self.model)
        kept = self._kept
        self._random = _AllRandomStates()
        for parameter in self.parameters:
            kept.keep(parameter)
        modules = [*self.model.modules(), *modules_of_loss(self._loss_fn, self.model)]
        for module in modules:
            kept.keep_attributes(module)
        if hasattr(self._loss_fn, "__dict__") and not isinstance(self._loss_fn, torch.nn.Module):
            kept.keep(vars(self._loss_fn))
        kept_state = torch.nn.Module.get_extra_state
        self._extra_states = [
            (module, copy.deepcopy(module.get_extra_state()))
            for module in modules
            if type(module).get_extra_state is not kept_state
        ]
        for optimizer in self.optimizers:
            kept.keep_attributes(optimizer)
        if self.scheduler is not None and hasattr(self.scheduler, "__dict__"):
            kept.keep_attributes(self.scheduler)
        self._trained = list(kept.trained)
        self._gradients = [p.grad for p in self._trained]
        self._are_trained = [p.requires_grad for p in self._trained]
        kept.keep([g for g in self._gradients if g is not None])  # DDP's may be views of its buckets
        if is_compiled(self.model):
            self._stack.enter_context(torch.compiler.set_stance("force_eager"))
        self._set_aside()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._put_back()
        finally:
            self._stack.close()

    def rewind(self) -> None:
        """Restores the state at the beginning, for another part of the trial."""
        self._put_back()
        self._set_aside()

    def _put_back(self) -> None:
        reshard(self.model)
        self._kept.put_back()
        for module, state in self._extra_states:
            module.set_extra_state(copy.deepcopy(state))
        for parameter, gradient, is_trained in zip(self._trained, self._gradients, self._are_trained, strict=True):
            parameter.requires_grad_(is_trained)
            parameter.grad = gradient
        self._random.put_back()

    def _set_aside(self) -> None:
        self._clear_gradients()
        for optimizer in self.optimizers:
            optimizer._optimizer_step_pre_hooks.clear()
            optimizer._optimizer_step_post_hooks.clear()

    def train(self) -> None:
        """Training mode, unless the model is in it: parts that are in eval mode on purpose stay so."""
        if not self.model.training:
            self.model.train()

    def repeat_noise(self) -> None:
        """Restores the random numbers of the beginning, so that dropout is the same again."""
        self._random.put_back()

    def loss(self, batch: Any) -> torch.Tensor:
        """The loss of a copy of the batch; called on all ranks, and raises on all if on one."""
        if self.ranks.num == 1 or not self.meets_inside:
            return self.ranks.together(lambda: self.local_loss(batch))
        # A sharded model waits for the others in its forward: so it is not called once one of them has raised.
        handle = self.model.register_forward_pre_hook(lambda *_: self.ranks.fail_together(None), prepend=True)
        try:
            return self.ranks.together(lambda: self.local_loss(batch))
        finally:
            handle.remove()

    @property
    def is_criterion(self) -> bool:
        """Whether the loss takes (outputs, targets); known for certain after the first loss."""
        return self._kind == "criterion"

    def local_loss(self, batch: Any) -> torch.Tensor:
        """The loss of a copy of the batch on this rank alone."""
        if self._kind == "unknown":
            self._kind = settle(
                self.tool, self._loss_fn, lambda: self._of_model(batch), lambda: self._of_outputs(batch)
            )
            self.repeat_noise()
        loss = self._of_outputs(batch) if self.is_criterion else self._of_model(batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError(f"{self.tool}(loss): it returned {describe(loss)}; return one number, as loss.mean()")
        return loss.reshape(())

    def _of_model(self, batch: Any) -> Any:
        return self._loss_fn(self.model, fresh(batch))

    def _of_outputs(self, batch: Any) -> Any:
        inputs, targets = parted(fresh(batch), self.split)
        if targets is None:
            raise TypeError(
                f"{self.tool}(loss): {name_of(self._loss_fn)} is a criterion and needs batches of (inputs, targets), "
                f"and this batch is {describe(batch)}; write a function of (model, batch) instead, or pass split="
            )
        return self._loss_fn(self.outputs(inputs), targets.to(self.device))

    def forward(self, batch: Any) -> Any:
        """What the model makes of a copy of the batch; called on all ranks, and raises on all if on one."""
        return self.ranks.together(lambda: self.outputs(parted(fresh(batch), self.split)[0]))

    def outputs(self, inputs: Any) -> Any:
        """What the model makes of a batch's inputs: of a mapping with the names of its arguments, of anything else."""
        inputs = on_device(inputs, self.device)
        return self.model(**inputs) if _are_arguments(self.model, inputs) else self.model(inputs)

    def measure(self, batch: Any) -> float:
        """The loss as a number, the mean over the ranks, without a graph."""
        with torch.no_grad():
            return self.ranks.mean(float(self.loss(batch)))

    def backward(self, batch: Any) -> float:
        """Fresh gradients of a batch, averaged over the ranks, and the mean loss."""
        self._clear_gradients()
        loss = self.loss(batch)
        self.ranks.together(lambda: self._check_connected(loss))
        self.ranks.together(loss.backward)
        value = float(loss.detach())
        self.ranks.average_gradients(self.parameters)
        return self.ranks.mean(value)

    def _clear_gradients(self) -> None:
        for parameter in self._trained:
            parameter.grad = None

    def _check_connected(self, loss: torch.Tensor) -> None:
        if not loss.requires_grad:
            raise ValueError(
                f"{self.tool}(loss_fn=...): the loss is not connected to the parameters: is it detached, "
                "or computed under no_grad?"
            )

    def step(self) -> None:
        """One step of each optimizer on the gradients that are there."""
        for optimizer in self.optimizers:
            optimizer.step()


class _AllRandomStates:
    """The generators' states, on every device of this process."""

    def __init__(self) -> None:
        self._states = RandomStates.take()
        has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._devices = torch.cuda.get_rng_state_all() if has_cuda else []

    def put_back(self) -> None:
        self._states.put_back()
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)


def _are_arguments(model: torch.nn.Module, inputs: Any) -> bool:
    """Whether a mapping names arguments of the model, so that it is passed by name."""
    if not isinstance(inputs, dict) or not inputs or not all(isinstance(key, str) for key in inputs):
        return False
    return set(inputs) <= set(inspect.signature(model.forward).parameters)


def unwrapped(model: Any) -> tuple[torch.nn.Module, Any]:
    """The user's module, and the DDP around it, if there is one."""
    replicas = None
    while True:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            replicas, model = model, model.module
        elif type(model).__name__ == "OptimizedModule" and hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model, replicas
