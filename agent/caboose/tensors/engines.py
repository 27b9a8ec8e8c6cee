"""DeepSpeed's engines: how one is recognised, and how many elements a partitioned parameter has.

DeepSpeed is never imported here: an engine exists only where the program has imported it. Nor is torch before there is
an engine: `python -m caboose` reads this in processes that never import it.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ENGINE_MODULE = "deepspeed.runtime.engine"


def engine_of(model: Any) -> Any:
    """The model itself, if it is a DeepSpeed engine; else None."""
    kind = getattr(sys.modules.get(ENGINE_MODULE), "DeepSpeedEngine", None)
    return model if kind is not None and isinstance(model, kind) else None


def own_optimizer(engine: Any) -> Any:
    """DeepSpeed's own optimizer (ZeRO, BF16, FP16), which is no torch optimizer; None if the engine uses none."""
    import torch

    optimizer = getattr(engine, "optimizer", None)
    has_step = hasattr(optimizer, "step") and hasattr(optimizer, "optimizer")
    return optimizer if has_step and not isinstance(optimizer, torch.optim.Optimizer) else None


def why_gradients_are_hidden(model: "torch.nn.Module") -> str:
    """Why no gradient of this model can be read at the step; empty if they can."""
    engine = engine_of(model)
    if engine is None or own_optimizer(engine) is None:
        return ""
    return (
        f"DeepSpeed ZeRO stage {int(engine.zero_optimization_stage())} reduces and keeps them in buffers of its own: "
        "only their total norm is seen"
    )


def num_elements(parameter: "torch.Tensor") -> int:
    """Elements of the whole parameter, also where ZeRO-3 has partitioned it: its own tensor is then empty."""
    whole = getattr(parameter, "ds_numel", None)
    return parameter.numel() if whole is None else int(whole)
