"""A whole daemon in this process, serving on a thread: for tests that change a limit or look inside."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caboose_daemon.app.app import Daemon
from caboose_daemon.config import Config, DaemonConfig


@contextlib.contextmanager
def served(directory: Path, **settings: Any) -> Iterator[Daemon]:
    """A daemon that is ready when the block begins and gone when it ends; `settings` are of `[daemon]`."""
    addresses = {"listen": "tcp://127.0.0.1:0", "http": "127.0.0.1:0", "data_dir": str(directory)}
    daemon = Daemon(Config(daemon=DaemonConfig(**{**addresses, **settings})))
    ready = threading.Event()
    try:
        daemon.start()
    except BaseException:
        daemon.close()
        raise
    thread = threading.Thread(target=daemon.serve, args=(ready.set,))
    thread.start()
    try:
        assert ready.wait(20)
        yield daemon
    finally:
        daemon.stop()
        thread.join(20)
