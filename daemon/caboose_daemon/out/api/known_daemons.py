"""The daemons of this user on this machine: where each one listens, and which file has its token.

Design
------
A command that writes needs a token, and the daemon's token is in its data directory, wherever that is. So a daemon
notes the file's place, under its address, in the user's state directory (`$XDG_STATE_HOME/caboose/daemons`), and
removes the note when it ends. `caboose stack up` notes its daemon as well, under the name `stack`: commands without
`--daemon` and `CABOOSE_HTTP` ask that one while it runs. A note holds no secret: the token's own file is private. A
daemon never tells a client where to read a token: another program at its port could name any file.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from caboose_wire.private_files import user_secret_path

STACK = "stack"


@dataclass(frozen=True)
class KnownDaemon:
    """What is noted of one daemon."""

    url: str
    token_file: str
    endpoint: str
    """Where agents report."""
    pid: int
    started: str
    """The process's start time; with the pid, it identifies a process."""

    @property
    def is_running(self) -> bool:
        """Whether its process still runs, and not another one with its pid."""
        return bool(self.started) and start_time(self.pid) == self.started


def start_time(pid: int) -> str:
    """A process's start time in kernel ticks; empty if it does not exist. With the pid, it identifies a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def note(daemon: KnownDaemon, name: str = "", env: Mapping[str, str] = os.environ) -> None:
    """Notes a daemon, under its address or a name; does nothing where there is no home to write to."""
    path = _path(name or _name(daemon.url), env)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = path.with_suffix(f".{os.getpid()}.tmp")
        aside.write_text(json.dumps(asdict(daemon)) + "\n", encoding="utf-8")
        aside.replace(path)


def forget(daemon: KnownDaemon, name: str = "", env: Mapping[str, str] = os.environ) -> None:
    """Removes the note, unless another daemon has written it since."""
    path = _path(name or _name(daemon.url), env)
    if path is not None and _read(path) == daemon:
        with contextlib.suppress(OSError):
            path.unlink()


def known_at(url: str, env: Mapping[str, str] = os.environ) -> KnownDaemon | None:
    """What is noted of the daemon that runs at an address; None if nothing is."""
    return known_as(_name(url), env)


def known_as(name: str, env: Mapping[str, str] = os.environ) -> KnownDaemon | None:
    """What is noted of the daemon that runs under a name; None if nothing is, or if it is dead."""
    path = _path(name, env)
    known = None if path is None else _read(path)
    return known if known is not None and known.is_running else None


def _path(name: str, env: Mapping[str, str]) -> Path | None:
    secret = user_secret_path(env)
    return None if secret is None else secret.parent / "daemons" / f"{name}.json"


def _name(url: str) -> str:
    return urlsplit(url).netloc.replace("[", "").replace("]", "")


def _read(path: Path) -> KnownDaemon | None:
    try:
        return KnownDaemon(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
