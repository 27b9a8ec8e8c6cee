"""Without code, the validation loss is what the script itself logs under that name, to TensorBoard or W&B.

Design
------
Which forward passes are a validation, and of what data, is known to the script alone: a loop in eval mode may run over
training data as well. But scripts name what they log. `SummaryWriter.add_scalar` and W&B's `Run.log` are replaced when
the script has imported them; the value is reported when it has been logged. A name counts if it consists of a word for
validation, the word loss, and nothing else but words such as "mean" (`val/loss`, `Loss/validation`, `eval_loss_epoch`):
one of several losses is not the loss of the validation. Logged to both places, it is reported once.
"""

import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from caboose.attachment import imports, no_code
from caboose.guard import Guard
from caboose.observe.patches import Patches

VALIDATION = frozenset({"val", "valid", "validation", "eval", "evaluation", "dev"})
FILLING = frozenset({"avg", "average", "mean", "total", "epoch"})
WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
RUN = "wandb.sdk.wandb_run"

_patches = Patches()
"""They stay until the process ends."""


def begin(guard: Guard) -> None:
    """Waits for the libraries; they are not imported here."""
    notice = guard.protect("event", _note)
    note_all = guard.protect("event", _note_all)

    def watch_writer(module: ModuleType) -> None:
        _patches.put(module.SummaryWriter, "add_scalar", lambda original: _adding(original, notice))

    for name in WRITERS:
        imports.when_imported(name, watch_writer)
    imports.when_imported(RUN, lambda module: _patches.put(module.Run, "log", lambda o: _logging(o, note_all)))


def is_validation_loss(name: str) -> bool:
    """Whether this is the name of the loss of a validation."""
    words = set(re.findall(r"[a-z]+", name.lower()))
    return "loss" in words and bool(words & VALIDATION) and not words - VALIDATION - FILLING - {"loss"}


def _adding(original: Callable[..., Any], notice: Callable[..., Any]) -> Callable[..., Any]:
    def add_scalar(writer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(writer, *args, **kwargs)
        name = args[0] if args else kwargs.get("tag")
        if len(args) > 1 or "scalar_value" in kwargs:
            notice(name, args[1] if len(args) > 1 else kwargs["scalar_value"])
        return result

    return add_scalar


def _logging(original: Callable[..., Any], note_all: Callable[..., Any]) -> Callable[..., Any]:
    def log(run: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(run, *args, **kwargs)
        note_all(args[0] if args else kwargs.get("data"))
        return result

    return log


def _note(name: Any, value: Any) -> None:
    if isinstance(name, str) and is_validation_loss(name):
        no_code.report_validation(value)


def _note_all(data: Any) -> None:
    if isinstance(data, Mapping):
        for name, value in data.items():
            _note(name, value)
