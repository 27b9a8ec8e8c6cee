"""Files with secrets: checks who may read them, and makes the one that a user's daemon and agents share.

Design
------
Commands on one machine are signed without configuration. The secret is one file per user,
`$XDG_STATE_HOME/caboose/secret` (default `~/.local/state/caboose/secret`), made by whoever comes first: the daemon, or
an agent that may act. It is not tied to a port: the daemons of one user can read each other's files anyway, and a
command also names the random nonce of the ranks it is for. A home that several hosts share gives them one secret. A
daemon of another user, or in a container with another home, has another secret; name one file for both then
(`CABOOSE_SECRET_FILE`).

A file that was made here is trusted only if it is a regular file of this user that nobody else may read, in a
directory of this user that nobody else may write. It is made under another name and linked, so nobody reads a part.

A file that a person names may belong to somebody else: a mounted secret is root's, and readable by a group. It is
refused if all users may read it, or if it is this user's own and its group may.
"""

import contextlib
import os
import secrets
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

MAX_BYTES = 4096


class NotPrivate(ValueError):
    """Others may read or replace the file; the message is one line with the command that mends it."""


def user_secret_path(env: Mapping[str, str]) -> Path | None:
    """The file of this user's secret; None without a home."""
    state = env.get("XDG_STATE_HOME", "")
    if state and os.path.isabs(state):
        return Path(state) / "caboose" / "secret"
    try:
        return Path.home() / ".local" / "state" / "caboose" / "secret"
    except RuntimeError:
        return None


def check_named(path: Path) -> None:
    """NotPrivate if too many may read a file that a person named; nothing about a file that is missing."""
    try:
        found = path.stat()
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    is_exposed = mode & 0o007 or (mode & 0o070 and found.st_uid == os.geteuid())
    if is_exposed:
        raise _exposed(path, mode)


def _exposed(path: Path, mode: int) -> NotPrivate:
    fix = f"chmod 600 {shlex.quote(str(path))}"
    return NotPrivate(f"{path} can be read or changed by other users (mode {mode:03o}): run `{fix}`")


def read_or_make(path: Path, num_bytes: int = 32) -> bytes:
    """The secret in a file of this user alone, made if it is missing; OSError or NotPrivate if it cannot be had."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_directory(path.parent)
    try:
        return _read(path)
    except FileNotFoundError:
        _make(path, secrets.token_hex(num_bytes).encode() + b"\n")
        return _read(path)


def _check_directory(directory: Path) -> None:
    found = directory.stat()
    if found.st_uid != os.geteuid():
        raise NotPrivate(f"{directory} belongs to another user (uid {found.st_uid})")
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise NotPrivate(f"{directory} can be written by other users: run `chmod 700 {directory}`")


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise NotPrivate(f"{path} is not a file")
        if found.st_uid != os.geteuid():
            raise NotPrivate(f"{path} belongs to another user (uid {found.st_uid})")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise _exposed(path, stat.S_IMODE(found.st_mode))
        secret = file.read(MAX_BYTES).strip()
    if len(secret) < 16:
        raise NotPrivate(f"{path} has {len(secret)} bytes, too few for a secret: remove it, and a new one is made")
    return secret


def _make(path: Path, content: bytes) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        with contextlib.suppress(FileExistsError):  # somebody else was first, and that secret counts
            os.link(aside, path)
    finally:
        aside.unlink(missing_ok=True)
