"""A DeepSpeed engine's optimizer, as the one torch optimizer that the observer knows.

Design
------
DeepSpeed's own optimizers (ZeRO 1 to 3, BF16, FP16) are no torch optimizers. Inside them is one, whose groups hold flat
partitions instead of the model's parameters, and whose `step` is called once for each group or each part of a group. So
neither its hooks nor its parameters are those of a step. What is: DeepSpeed's optimizer steps once at each accumulation
boundary, and has then computed the norm of all gradients, over all ranks and before clipping.

`EngineOptimizer` has the step hooks of a torch optimizer, called around that step; the groups' settings of the inner
optimizer; and the model's parameters. `Optimizer.__init__` is not called: it would make groups and a state of its own,
and the program's global optimizer hooks would see an optimizer that the program does not have.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from caboose.observe.patches import Patches
from caboose.tensors.engines import own_optimizer

GROUPS = ("trainable_param_groups", "bit16_groups", "bf16_groups", "fp16_groups")
"""Where DeepSpeed's optimizers keep the model's parameters: ZeRO-3, ZeRO-1 and 2, BF16, FP16."""


class EngineOptimizer(torch.optim.Optimizer):
    """One engine's steps."""

    def __init__(self, engine: Any) -> None:
        own = own_optimizer(engine)
        inner = own.optimizer
        self._engine = weakref.ref(engine)
        self._own = own
        self.inner: torch.optim.Optimizer = inner
        """The torch optimizer inside, which steps once for each part."""
        self._members = _members(own, len(inner.param_groups))
        self._listeners: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()
        self._patches = Patches()
        # Everything that names an optimizer names the one that the program chose.
        self.__class__ = type(type(inner).__name__, (EngineOptimizer,), {})

    @property
    def engine(self) -> Any:
        """The engine; None once it is gone."""
        return self._engine()

    @property
    def num_steps(self) -> int:
        """Steps that the engine has taken, also in the run that this one continues."""
        return int(getattr(self.engine, "global_steps", 0))

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # nobody writes it
        """The inner optimizer's settings, with the model's parameters."""
        groups = zip(self.inner.param_groups, self._members, strict=False)
        return [{**group, "params": members} for group, members in groups]

    @property
    def state(self) -> Any:  # type: ignore[override]  # as above
        """The inner optimizer's; its tensors are those of partitions."""
        return self.inner.state

    @property
    def max_norm(self) -> float | None:
        """The limit to which the engine clips."""
        limit = float(self.engine.gradient_clipping() or 0.0)
        return limit if limit > 0.0 else None

    def total_norm(self) -> torch.Tensor | None:
        """Of the gradients of the step that has just ended; None if it was skipped, because one is not finite."""
        if getattr(self._own, "overflow", False):
            return None
        norm = getattr(self._own, "_global_grad_norm", None)
        return None if norm is None else torch.as_tensor(norm).detach().reshape(())

    def watch(self) -> None:
        """From now on the hooks are called."""
        if not self._patches.has(self._own, "step"):
            self._patches.put(self._own, "step", self._around)

    def listen(self, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        """Calls these outside of all hooks, with this optimizer; before a step they may place hooks."""
        self._listeners.append((before, after))
        self.watch()

    def release(self) -> None:
        """The hooks are not needed any more: DeepSpeed's optimizer is as before, unless someone listens."""
        if not self._listeners:
            self._patches.undo()

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            for before, _ in self._listeners:
                before(self)
            for hook in list(self._optimizer_step_pre_hooks.values()):
                hook(self, (), {})
            result = original(*args, **kwargs)
            for hook in list(self._optimizer_step_post_hooks.values()):
                hook(self, (), {})
            for _, after in self._listeners:
                after(self)
            return result

        return step


_made: "weakref.WeakKeyDictionary[Any, EngineOptimizer]" = weakref.WeakKeyDictionary()


def of_engine(engine: Any) -> EngineOptimizer | None:
    """The optimizer of an engine, always the same; None if it steps with a torch optimizer as it is."""
    if own_optimizer(engine) is None:
        return None
    if engine not in _made:
        _made[engine] = EngineOptimizer(engine)
    return _made[engine]


def _members(own: Any, num_groups: int) -> list[list[torch.Tensor]]:
    """The model's parameters in each group of the inner optimizer."""
    members: list[list[torch.Tensor]] = [[] for _ in range(num_groups)]
    found = next((groups for name in GROUPS if (groups := getattr(own, name, None))), ())
    for number, group in enumerate(found):
        is_described = isinstance(group, dict)
        place = group.get("param_group_id", number) if is_described else number
        members[place if place < num_groups else -1].extend(group["params"] if is_described else group)
    return members
