"""Without code, a framework's own callback is used where a framework trains: its numbers are those of the callback.

Design
------
When the script has imported the Hugging Face Trainer or Lightning's, `Trainer.train` and `Trainer.fit` are replaced:
they add our callback, unless the script has given one, and then train. The callback attaches, which ends the automatic
attach (`attachment.no_code`). A callback that cannot attach logs that once, and training goes on. It is added before
Lightning starts other ranks, so that those which get a pickled or forked Trainer have it too.

The launcher of Lightning and of Fabric starts the other ranks with the script's own command, so that they would not be
watched; the command is replaced by one that runs the script as this process does.

Classes that average the ranks' weights are watched for their first use (`observe.averaging`).

Accelerate and Fabric leave the loop to the script, and what they wrap is found without their help. Only what they save
is not seen by torch, so `Accelerator.save_state` and `Fabric.save` are wrapped.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from caboose.attachment import imports, no_code
from caboose.guard import Guard
from caboose.integrations.places import place_of
from caboose.observe import averaging
from caboose.observe.patches import Patches
from caboose.tensors.engines import ENGINE_MODULE

LIGHTNING = {"lightning.pytorch": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}
LAUNCHER = "strategies.launchers.subprocess_script"

_patches = Patches()
"""They stay until the process ends: a script may train again."""


def begin(guard: Guard) -> None:
    """Waits for frameworks; they are not imported here."""
    imports.when_imported("transformers.trainer", _watch(guard, "train", _into_hugging_face))
    report = guard.protect("event", _report_checkpoint)
    imports.when_imported("accelerate.accelerator", _watch_saving("Accelerator", "save_state", report))
    report_engine = guard.protect("event", _report_engine_checkpoint)
    imports.when_imported(ENGINE_MODULE, _watch_saving("DeepSpeedEngine", "save_checkpoint", report_engine))
    for name in averaging.USES:
        imports.when_imported(name, averaging.watch)
    for pytorch, fabric in LIGHTNING.items():
        imports.when_imported(f"{fabric}.fabric", _watch_saving("Fabric", "save", report))
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
        callback.is_automatic = True
        trainer.add_callback(callback)


def _into_lightning(trainer: Any, guard: Guard) -> None:
    from caboose.integrations.lightning import CabooseCallback

    if not any(isinstance(each, CabooseCallback) for each in trainer.callbacks):
        callback = CabooseCallback()
        callback.is_automatic = True
        trainer.callbacks.insert(0, callback)


def _watch_saving(owner: str, method: str, report: Callable[..., Any]) -> imports.Action:
    """An action that makes this method report what it has written."""

    def reporting(original: Callable[..., Any]) -> Callable[..., Any]:
        def save(saver: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(saver, *args, **kwargs)
            report(saver, result, args, kwargs)
            return result

        return save

    return lambda module: _patches.put(getattr(module, owner), method, reporting)


def _report_checkpoint(saver: Any, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Accelerate returns where it has saved; Fabric is given the path, and what it saves is resumed from or not."""
    if not getattr(saver, "is_main_process", getattr(saver, "is_global_zero", False)):
        return
    path = result or kwargs.get("path") or kwargs.get("output_dir") or next(iter(args), None)
    if path is None:
        return
    state = kwargs.get("state") or (args[1] if len(args) > 1 else None)
    if isinstance(state, Mapping) and not any(hasattr(value, "param_groups") for value in state.values()):
        return  # weights alone: no run continues from them
    no_code.report_event("checkpoint", path=place_of(path))


def _report_engine_checkpoint(engine: Any, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """DeepSpeed writes into a folder for each tag, which is the step unless the script names it."""
    folder, tag = (*args, None, None)[:2]
    folder, tag = kwargs.get("save_dir", folder), kwargs.get("tag", tag)
    if engine.global_rank == 0 and folder is not None:
        no_code.report_event("checkpoint", path=place_of(os.path.join(folder, str(tag or _tag_of(engine)))))


def _tag_of(engine: Any) -> str:
    return f"global_step{engine.global_steps}"


def _watch_launcher(module: ModuleType) -> None:
    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def command(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            if isinstance(found, tuple):  # under Hydra: the command, and where it is run
                return _watched(found[0]), *found[1:]
            return _watched(found)

        return command

    for name in ("_basic_subprocess_cmd", "_hydra_subprocess_cmd"):
        if hasattr(module, name):
            _patches.put(module, name, made)


def _watched(command: Sequence[str]) -> list[str]:
    interpreter, *rest = command
    return [interpreter, "-m", "caboose", *rest]
