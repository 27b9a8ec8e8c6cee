"""Without code, a framework's own callback is used where a framework trains: its numbers are those of the callback.

Design
------
When the script has imported the Hugging Face Trainer or Lightning's, `Trainer.train` and `Trainer.fit` are replaced:
they add our callback, unless the script has given one, and then train. The callback attaches, which ends the automatic
attach (`attachment.no_code`). A callback that cannot attach logs that once, and training goes on.

Lightning's own launcher starts the other ranks with the script's own command, so that they would not be watched; the
command is replaced by one that runs the script as this process does.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from caboose.attachment import imports
from caboose.guard import Guard
from caboose.observe.patches import Patches

LIGHTNING = {"lightning.pytorch": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}
LAUNCHER = "strategies.launchers.subprocess_script"

_patches = Patches()
"""They stay until the process ends: a script may train again."""


def begin(guard: Guard) -> None:
    """Waits for frameworks; they are not imported here."""
    imports.when_imported("transformers.trainer", _watch(guard, "train", _into_hugging_face))
    for pytorch, fabric in LIGHTNING.items():
        imports.when_imported(f"{pytorch}.trainer.trainer", _watch(guard, "fit", _into_lightning))
        for package in (pytorch, fabric):
            imports.when_imported(f"{package}.{LAUNCHER}", _watch_launcher)


def _watch(guard: Guard, method: str, add: Callable[[Any, Guard], None]) -> imports.Action:
    """An action that makes `Trainer.method` of a module add our callback first."""
    add_to = guard.protect("automatic attach", add)

    def adding(original: Callable[..., Any]) -> Callable[..., Any]:
        def train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            add_to(trainer, guard)
            return original(trainer, *args, **kwargs)

        return train

    return lambda module: _patches.put(module.Trainer, method, adding)


def _into_hugging_face(trainer: Any, guard: Guard) -> None:
    from caboose.integrations.huggingface import CabooseCallback

    if not any(isinstance(each, CabooseCallback) for each in trainer.callback_handler.callbacks):
        callback = CabooseCallback()
        _protect(callback, "on_train_begin", guard)
        trainer.add_callback(callback)


def _into_lightning(trainer: Any, guard: Guard) -> None:
    from caboose.integrations.lightning import CabooseCallback

    if not any(isinstance(each, CabooseCallback) for each in trainer.callbacks):
        callback = CabooseCallback()
        _protect(callback, "on_train_start", guard)
        trainer.callbacks.insert(0, callback)


def _protect(callback: Any, name: str, guard: Guard) -> None:
    """A setting that attach refuses must not end a script that has not asked for it."""
    setattr(callback, name, guard.protect("automatic attach", getattr(callback, name)))


def _watch_launcher(module: ModuleType) -> None:
    def made(original: Callable[[], Sequence[str]]) -> Callable[[], Sequence[str]]:
        def command() -> Sequence[str]:
            interpreter, *rest = original()
            return [interpreter, "-m", "caboose", *rest]

        return command

    if hasattr(module, "_basic_subprocess_cmd"):
        _patches.put(module, "_basic_subprocess_cmd", made)
