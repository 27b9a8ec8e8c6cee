"""Without code, processes that the script starts for its ranks are watched too: torch.multiprocessing's, and Ray's.

Design
------
Such a process runs a function of the script, not the script, so nothing has begun to watch there.

`torch.multiprocessing.spawn` starts every process with a function of its own, `_wrap`, which calls the script's. It is
replaced by `run_rank`, which begins to watch and calls `_wrap`: the traceback of a rank that fails, which torch takes
inside of `_wrap`, is the script's alone. Ray Train runs `train_loop_per_worker` on its workers, which have neither the
script's environment nor its name. It is wrapped, and takes both along. Ray pickles the wrapper by value, and it imports
Caboose only there: on a worker without Caboose the function runs unwatched.

Neither may run exit handlers, so the monitor is closed when the function has returned or raised.
"""

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from caboose.attachment import imports, no_code
from caboose.guard import Guard
from caboose.integrations import frameworks, scalars
from caboose.observe.patches import Patches
from caboose.report import identity, live_monitors
from caboose.settings import environment

SPAWN = "torch.multiprocessing.spawn"
RAY = ("ray.train.torch.torch_trainer", "ray.train.v2.torch.torch_trainer")

_patches = Patches()
_has_begun = False
"""Whether frameworks are waited for; a forked process inherits that."""
_run_function: Callable[..., Any] | None = None
"""torch's own function, where it was replaced."""


def begin(env: Mapping[str, str]) -> Guard | None:
    """Begins to watch what this process trains, and the processes that it starts for that."""
    global _has_begun
    guard = no_code.begin(env)
    if guard is None or _has_begun:
        return guard
    _has_begun = True
    frameworks.begin(guard)
    scalars.begin(guard)
    imports.when_imported(SPAWN, guard.protect("automatic attach", _watch_spawned))
    wrap = guard.protect("automatic attach", _for_workers)
    for name in RAY:
        imports.when_imported(name, lambda module: _watch_workers(module, wrap))
    return guard


@contextlib.contextmanager
def _watching(env: Mapping[str, str], *, reports_unseen: bool = True) -> Iterator[None]:
    """Watches what the block trains; reports it if nothing could be watched, as one of all ranks does."""
    guard = begin(env)
    has_failed = True
    try:
        yield
        has_failed = False
    except BaseException as error:
        # torch ends a process whose function has raised with sys.exit(1)
        cause = error.__context__ if isinstance(error, SystemExit) and error.code == 1 else None
        live_monitors.note_exit(cause or error)
        raise
    finally:
        if guard is not None:
            no_code.end(reports_unseen=reports_unseen and not has_failed)
            live_monitors.close_all()


def _watch_spawned(module: ModuleType) -> None:
    global _run_function

    def starting(original: Callable[..., Any]) -> Callable[..., Any]:
        def start_processes(*args: Any, **kwargs: Any) -> Any:
            no_code.note_processes()
            return original(*args, **kwargs)

        return start_processes

    names = vars(module)
    if names["_wrap"] is not run_rank:
        _run_function, names["_wrap"] = names["_wrap"], run_rank
        _patches.put(module, "start_processes", starting)


def run_rank(function: Any, number: int, *args: Any) -> Any:
    """What torch.multiprocessing runs in a process that it has started; found there by this name."""
    run = _run_function or vars(importlib.import_module(SPAWN))["_wrap"]
    with _watching(os.environ, reports_unseen=number == 0):
        return run(function, number, *args)


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
    process = os.getpid()
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
    process: int,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Runs the function on a worker; `process` is that of the script, which is watched already."""
    if os.getpid() == process:
        return function(*args, **kwargs)
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    with _watching(os.environ):
        return function(*args, **kwargs)
