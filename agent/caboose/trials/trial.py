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
import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import distributed as dist

from caboose.observe.opaque import is_compiled
from caboose.tensors.random_states import RandomStates
from caboose.tensors.shards import is_fsdp, reshard
from caboose.trials import supported
from caboose.trials.batches import Split, fresh, on_device, parted
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
        self._meets_inside = self.is_sharded or any(isinstance(m, torch.nn.SyncBatchNorm) for m in inner.modules())
        """Whether the forward communicates with other ranks."""
        self._loss_fn = loss_fn
        self._is_criterion = is_criterion(loss_fn)
        self._split = split
        self.scheduler = scheduler
        self._kept = Kept(follows_objects=True)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Trial":
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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._put_back()

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
        if self.ranks.num == 1 or not self._meets_inside:
            return self.ranks.together(lambda: self._loss(batch))
        # A sharded model waits for the others in its forward: so it is not called once one of them has raised.
        handle = self.model.register_forward_pre_hook(lambda *_: self.ranks.fail_together(None), prepend=True)
        try:
            return self.ranks.together(lambda: self._loss(batch))
        finally:
            handle.remove()

    def _loss(self, batch: Any) -> torch.Tensor:
        batch = fresh(batch)
        if self._is_criterion:
            inputs, targets = parted(batch, self._split)
            if targets is None:
                raise TypeError(
                    f"{self.tool}(loss_fn={_name(self._loss_fn)}): a criterion needs batches of (inputs, "
                    "targets); write loss_fn(model, batch) instead"
                )
            outputs = self.model(on_device(inputs, self.device))
            loss = self._loss_fn(outputs, targets.to(self.device))
        else:
            loss = self._loss_fn(self.model, batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise TypeError(f"{self.tool}(loss_fn=...): it returned {got}; return one number, as loss.mean()")
        return loss.reshape(())

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


def is_criterion(loss_fn: Any) -> bool:
    """Whether it takes (outputs, targets): one of torch's losses, or a module; also with bound arguments."""
    loss_fn, _ = criterion_of(loss_fn)
    return isinstance(loss_fn, torch.nn.Module) or getattr(loss_fn, "__module__", "") == "torch.nn.functional"


def criterion_of(loss_fn: Any) -> tuple[Any, dict[str, Any]]:
    """The function inside `functools.partial`, and the arguments that it binds by name."""
    settings: dict[str, Any] = {}
    while isinstance(loss_fn, functools.partial):
        settings = {**loss_fn.keywords, **settings}
        loss_fn = loss_fn.func
    return loss_fn, settings


def _name(loss_fn: Any) -> str:
    criterion, _ = criterion_of(loss_fn)
    return getattr(criterion, "__name__", type(criterion).__name__)


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
