"""Without code, ranks that the script starts itself are watched: processes of multiprocessing, and Ray's workers.

Design
------
`torch.multiprocessing.spawn` and `Process` of the spawn context start python with a line of code that runs the script's
function. Before that line comes ours, which does what `python -m caboose` does before the script. A child that trains
nothing reports nothing. A forked child has what this process has, as long as it has not attached.

Ray Train runs `train_loop_per_worker` on its workers, which have neither the script's environment nor its name. It is
wrapped, and takes both along. Ray pickles the wrapper by value, and it imports Caboose only there: on a worker without
Caboose the function runs unwatched. A worker may run no exit handlers, so the monitor is closed when the function has
returned or raised.

The process that starts such processes may train nothing itself: then it does not log that.
"""

import contextlib
import functools
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from caboose.attachment import imports, no_code
from caboose.guard import Guard
from caboose.integrations import frameworks, scalars
from caboose.observe.patches import Patches
from caboose.report import identity, live_monitors
from caboose.settings import environment

BEGIN = """\
try:
    from caboose.integrations.processes import begin
except ImportError:  # its path is set later
    pass
else:
    begin(is_child=True)
"""
RAY = ("ray.train.torch.torch_trainer", "ray.train.v2.torch.torch_trainer")

_patches = Patches()
"""They stay until the process ends."""
_has_begun = False
"""Whether frameworks are waited for; a forked process inherits that."""


def begin(*, is_child: bool = False) -> Guard | None:
    """Watches what this process trains from now on, and what it starts; returns its guard. Never raises."""
    global _has_begun
    guard = no_code.begin(os.environ, is_child=is_child)
    if guard is None or _has_begun:
        return guard
    _has_begun = True
    frameworks.begin(guard)
    scalars.begin(guard)
    imports.when_imported("multiprocessing.spawn", _watch_spawning)
    wrap = guard.protect("automatic attach", _for_workers)
    for name in RAY:
        imports.when_imported(name, lambda module: _watch_workers(module, wrap))
    return guard


def _watch_spawning(module: ModuleType) -> None:
    _patches.put(module, "get_command_line", _spawning)


def _spawning(original: Callable[..., Sequence[str]]) -> Callable[..., list[str]]:
    def get_command_line(**given: Any) -> list[str]:
        command = list(original(**given))
        if "-c" in command[:-1]:
            place = command.index("-c") + 1
            command[place] = BEGIN + command[place]
            no_code.note_processes()
        return command

    return get_command_line


def _watch_workers(module: ModuleType, wrap: Callable[[Any], Any]) -> None:
    def making(original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(trainer: Any, train_loop_per_worker: Any, *args: Any, **kwargs: Any) -> None:
            original(trainer, wrap(train_loop_per_worker) or train_loop_per_worker, *args, **kwargs)

        return __init__

    _patches.put(module.TorchTrainer, "__init__", making)


def _for_workers(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it runs on a worker: watched, under this run's name and settings."""
    variables = {name: os.environ[name] for name in environment.VARIABLES if name in os.environ}
    variables.setdefault("CABOOSE_JOB", identity.resolve(os.environ).job)
    process = _this_process()
    no_code.note_processes()

    @functools.wraps(function)
    def train(*args: Any, **kwargs: Any) -> Any:
        try:
            from caboose.integrations import processes
        except ImportError:
            return function(*args, **kwargs)
        return processes.run_worker(function, variables, process, args, kwargs)

    return train


def run_worker(
    function: Callable[..., Any],
    variables: Mapping[str, str],
    process: tuple[str, int],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Runs the function on a worker; `process` is that of the script, which is watched already."""
    if process == _this_process():
        return function(*args, **kwargs)
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    with _watching():
        return function(*args, **kwargs)


def _this_process() -> tuple[str, int]:
    """Its id, which another one may have on another host."""
    return socket.gethostname(), os.getpid()


@contextlib.contextmanager
def _watching() -> Iterator[None]:
    """Watches what the block trains; logs the reason if nothing could be watched."""
    guard = begin()
    has_failed = True
    try:
        yield
        has_failed = False
    except BaseException as error:
        live_monitors.note_exit(error)
        raise
    finally:
        if guard is not None:
            no_code.end(reports_unseen=not has_failed)
            live_monitors.close_all()
