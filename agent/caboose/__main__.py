"""`python -m caboose train.py`: runs a script or a module as python would, and watches what it trains.

Design
------
The script gets its own `__main__` module, which stays in `sys.modules` until the process ends: what it pickles, spawns
or registers for the exit finds the same as without us. For `-m`, runpy does exactly what `python -m` does. When an
exception ends the script, our frames are removed from the traceback; exit codes, signals and `sys.exit` are not
touched. torchrun's summary of a failure takes its title from its own command line, which names this module; so the
exception is written to the error file that torchrun reads, and the summary shows the script's traceback; also of a
`sys.exit` that is a failure.
"""

import contextlib
import io
import json
import os
import pkgutil
import runpy
import sys
import time
import traceback
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType

from caboose.integrations import processes
from caboose.report import live_monitors
from caboose.version import __version__

USAGE = """\
usage: python -m caboose SCRIPT [ARGUMENT ...]
       python -m caboose -m MODULE [ARGUMENT ...]

Runs a training script unchanged and reports every step to the Caboose daemon: loss, learning rate, gradients.

  -m MODULE      run a module instead of a file, as python -m does
  -h, --help     show this help
  --version      show the version

examples:
  python -m caboose train.py --epochs 3
  torchrun --nproc-per-node 8 -m caboose train.py --epochs 3

Where it reports to, and under which name, is set by CABOOSE_ENDPOINT (default tcp://127.0.0.1:5757) and CABOOSE_JOB;
CABOOSE_DISABLED=1 runs the script without watching it. The daemon is another command: caboose daemon --help
"""

WATCHING_FILES = frozenset(
    os.path.join(os.path.dirname(__file__), *name)
    for name in (
        ("attachment", "no_code.py"),
        ("attachment", "discovery.py"),
        ("attachment", "engines.py"),
        ("integrations", "frameworks.py"),
        ("integrations", "huggingface.py"),
        ("integrations", "lightning.py"),
        ("integrations", "processes.py"),
        ("integrations", "scalars.py"),
        ("observe", "engine_optimizer.py"),
        ("observe", "loader.py"),
        ("observe", "losses.py"),
        ("observe", "model_calls.py"),
        ("observe", "waits.py"),
        ("report", "exits.py"),
    )
)
"""Files whose functions replace torch's; their frames are not part of the script."""


def main() -> None:
    """Reads our few options, then runs the script."""
    first, *rest = sys.argv[1:] or [""]
    if first in ("-h", "--help"):
        sys.stdout.write(USAGE)
    elif first == "--version":
        sys.stdout.write(f"caboose {__version__}\n")
    elif first == "-m" and rest:
        run(first, rest)
    elif first == "" or first.startswith("-"):
        problem = {"": "no script given", "-m": "-m needs the name of a module"}.get(first, f"unknown option {first}")
        sys.stderr.write(f"{USAGE}\nerror: {problem}\n")
        sys.exit(2)
    else:
        run(first, rest)


def run(first: str, rest: list[str]) -> None:
    """Runs `first` with `rest` as its arguments; if it is `-m`, the module that comes next."""
    guard = processes.begin()
    try:
        if first == "-m":
            _run_module(rest[0], rest[1:])
        elif pkgutil.get_importer(first) is not None:
            _run_directory(first, rest)
        else:
            _run_script(first, rest)
    except BaseException as error:
        if guard is not None:
            live_monitors.note_exit(error)
            _record_for_torchrun(error)
        _hide_own_frames()
        raise
    if guard is not None:
        live_monitors.note_exit(None)


def _run_script(path: str, arguments: list[str]) -> None:
    name = os.path.join(os.getcwd(), path)  # as python does: absolute, but not normalised
    try:
        with io.open_code(name) as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {name!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    sys.argv = [path, *arguments]
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    module = _new_main()
    module.__file__ = name
    module.__loader__ = SourceFileLoader("__main__", name)
    vars(module)["__cached__"] = None
    code = compile(source, name, "exec", dont_inherit=True)
    exec(code, vars(module))  # noqa: S102 - running the script is the purpose


def _run_directory(path: str, arguments: list[str]) -> None:
    """A directory or zip file with a `__main__.py` in it."""
    sys.argv = [path, *arguments]
    _set_first_path(os.path.join(os.getcwd(), path))
    _new_main()
    runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]  # python's own way in


def _run_module(name: str, arguments: list[str]) -> None:
    sys.argv = ["-m", *arguments]
    _new_main()
    runpy._run_module_as_main(name, alter_argv=True)  # type: ignore[attr-defined]  # as above


def _set_first_path(directory: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = directory


def _new_main() -> ModuleType:
    module = ModuleType("__main__")
    vars(module)["__builtins__"] = sys.modules["builtins"]
    vars(module)["__annotations__"] = {}
    sys.modules["__main__"] = module
    return module


def _record_for_torchrun(error: BaseException) -> None:
    """Writes what `torch.distributed.elastic`'s `record` would, unless the script did that itself."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    is_failure = isinstance(error, Exception) or (isinstance(error, SystemExit) and error.code not in (None, 0))
    if not path or not is_failure or os.path.exists(path):
        return
    stack = "".join(traceback.format_exception(type(error), error, _without_ours(error.__traceback__)))
    details = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    with contextlib.suppress(OSError), open(path, "w") as file:
        json.dump({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": details}}, file)


def _hide_own_frames() -> None:
    """Shows the traceback that ends the process as it would be without us."""
    shown = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        theirs = _without_ours(trace)
        shown(kind, error.with_traceback(theirs), theirs)

    sys.excepthook = excepthook


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name == __file__:
            frames.clear()  # and what led here
        elif name not in WATCHING_FILES:
            frames.append(trace)
        trace = trace.tb_next
    inner = None
    for frame in reversed(frames):
        frame.tb_next = inner
        inner = frame
    return inner


if __name__ == "__main__":
    main()
