"""Whether the ranks step on their own gradients, and average their weights now and then (local SGD).

Design
------
Neither DDP nor an optimizer shows this: Accelerate's `LocalSGD` stays in `no_sync`, torch's averagers come with a
communication hook that reduces within a subgroup. Both are known by their classes: the first use of one is noted here
before the first step, hence before the automatic attach. A job that says `config={"local_sgd": True}` is another one.
"""

from collections.abc import Callable
from typing import Any

from caboose.observe.patches import Patches

WHY = "the ranks step on their own gradients, and their weights are averaged now and then: replicas differ in between"
USES = {
    "accelerate.local_sgd": ("LocalSGD", "__enter__"),
    "torch.distributed.algorithms.model_averaging.averagers": ("ModelAverager", "__init__"),
}
"""By module: the class and its method that begin such a training."""

_patches = Patches()
"""They stay until the process ends."""
_is_used = False


def is_used() -> bool:
    """Whether something averages weights in this process."""
    return _is_used


def watch(module: Any) -> None:
    """Notes the first use of an averager of this module, which is one of `USES`."""
    owner, method = USES[module.__name__]
    _patches.put(getattr(module, owner), method, _noting)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    def begin(averager: Any, *args: Any, **kwargs: Any) -> Any:
        global _is_used
        _is_used = _is_used or bool(getattr(averager, "enabled", True))
        return original(averager, *args, **kwargs)

    return begin
