"""Without code, a DeepSpeed engine is one model with one optimizer, whatever torch optimizers work inside it.

Design
------
When the program has imported DeepSpeed, `DeepSpeedEngine.__init__` is wrapped: from then on the steps of the engine's
own optimizer are passed on (`observe.engine_optimizer`), and those of the torch optimizer inside it are not, because
there are several of them in a step. The wrap stays until the process ends, and does nothing once the automatic attach
has stopped.
"""

import weakref
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from caboose.attachment import imports
from caboose.attachment.unwrapping import contained_in
from caboose.observe.patches import Patches
from caboose.tensors.engines import ENGINE_MODULE

if TYPE_CHECKING:
    import torch

    from caboose.observe.engine_optimizer import EngineOptimizer

Protect = Callable[[str, Callable[..., Any]], Callable[..., Any]]


class EngineWatch:
    """The engines of this process."""

    def __init__(
        self,
        protect: Protect,
        before: Callable[..., Any],
        after: Callable[..., Any],
        on_made: "Callable[[EngineOptimizer], Any]",
    ) -> None:
        """`before` and `after` are called around each engine's step, with its optimizer."""
        self._before = before
        self._after = after
        self._on_made = on_made
        self._patches = Patches()
        self._inner: list[weakref.ref[Any]] = []
        self.owns = protect("automatic attach", self._owns)
        """Whether this optimizer's steps are no steps of the run."""
        self._note_engine = protect("automatic attach", self._engine_made)
        imports.when_imported(ENGINE_MODULE, protect("automatic attach", self._imported))

    def _owns(self, optimizer: Any) -> bool:
        """An engine makes as many of them as it likes, and a container's step is that of the optimizers in it.

        By identity: an optimizer need not be hashable.
        """
        return any(inner() is optimizer for inner in self._inner) or bool(contained_in(optimizer))

    def model_of(self, optimizer: Any) -> "torch.nn.Module | None":
        """The engine, if this is an engine's optimizer."""
        return getattr(optimizer, "engine", None) if self._is_of_engine(optimizer) else None

    def steps_taken(self, optimizer: Any) -> int:
        """Steps of an engine; 0 for any other optimizer."""
        return int(optimizer.num_steps) if self._is_of_engine(optimizer) else 0

    def _is_of_engine(self, optimizer: Any) -> bool:
        from caboose.observe.engine_optimizer import EngineOptimizer

        return isinstance(optimizer, EngineOptimizer)

    def _imported(self, module: ModuleType) -> None:
        def making(original: Callable[..., Any]) -> Callable[..., Any]:
            def __init__(engine: Any, *args: Any, **kwargs: Any) -> None:
                original(engine, *args, **kwargs)
                self._note_engine(engine)

            return __init__

        self._patches.put(module.DeepSpeedEngine, "__init__", making)

    def _engine_made(self, engine: Any) -> None:
        from caboose.observe.engine_optimizer import of_engine

        optimizer = of_engine(engine)
        if optimizer is not None:
            self._inner.append(weakref.ref(optimizer.inner))
            optimizer.listen(self._before, self._after)
            self._on_made(optimizer)
