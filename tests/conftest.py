"""Fixtures every test may use."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import DaemonProcess, running_daemon
from support.selection import KeptPassed, pytest_collection_modifyitems, pytest_ignore_collect

__all__ = ["pytest_collection_modifyitems", "pytest_ignore_collect"]

# Tests run beside each other, one process a core. With two threads in each, most of them wait for a core: on two cores,
# the tests of the checklist take 8 s of CPU time with one thread and 32 s with two. Torch and numpy read this when they
# are imported, and the processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The secret that signs commands is this user's: tests have their own, and so have the processes that they start.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="caboose-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# A shell without a terminal starts what it puts in the background with SIGINT ignored, and children inherit that:
# tests that interrupt a process need it to hear them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A real daemon on free loopback ports."""
    with running_daemon(tmp_path / "daemon") as process:
        yield process


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the memory tests over a million steps")
    parser.addoption(
        "--keep-passed", metavar="FILE", type=Path, help="leave out what passed at this commit, until all has"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.keep_passed is not None:
        config.pluginmanager.register(KeptPassed(config.option.keep_passed))
