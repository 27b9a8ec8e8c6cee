"""CURVE keys for the report socket, in files: one pair for the daemon, one for each job or user that may report.

The directory holds `daemon.key_secret` and, in `agents`, one public key file for each name that is authorised. A name
is authorised by adding its file and revoked by removing it; a running daemon follows (see `key_watch`).
"""

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq
import zmq.auth

from caboose_wire.private_files import NotPrivate, check_named

DAEMON, AGENT = "daemon", "agent"
NAME = re.compile(r"[A-Za-z0-9_@-][A-Za-z0-9_.@-]{0,63}")


class KeysError(ValueError):
    """Keys cannot be made or read; the message names the reason and the fix."""


@dataclass(frozen=True)
class DaemonKeys:
    """The daemon's key pair and the directory of the agents' public keys."""

    public: bytes
    secret: bytes
    agents_dir: Path


@dataclass(frozen=True)
class AuthorisedKey:
    """One that may report."""

    name: str
    public: str
    since: float
    """Unix time of its file."""


def make(directory: Path) -> tuple[str, str]:
    """Makes both pairs; returns the two values agents need: the daemon's public key and the agents' secret key."""
    agents = directory / "agents"
    if (directory / f"{DAEMON}.key_secret").exists():
        raise KeysError(f"{directory} already contains keys; remove them first, or choose another directory")
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    agents.mkdir(exist_ok=True, mode=0o700)
    zmq.auth.create_certificates(directory, DAEMON)
    zmq.auth.create_certificates(agents, AGENT)
    for secret in (directory / f"{DAEMON}.key_secret", agents / f"{AGENT}.key_secret"):
        secret.chmod(0o600)
    public, _ = zmq.auth.load_certificate(directory / f"{DAEMON}.key")
    _, agent_secret = zmq.auth.load_certificate(agents / f"{AGENT}.key_secret")
    assert agent_secret is not None, "a secret certificate has a secret key"
    return public.decode(), agent_secret.decode()


def load(directory: Path) -> DaemonKeys:
    """The daemon's keys from a directory filled by `make`."""
    path = directory / f"{DAEMON}.key_secret"
    try:
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise KeysError(f"{path}: {error}; make keys with `caboose keys new {directory}`") from None
    if secret is None:
        raise KeysError(f"{path} contains no secret key; make keys with `caboose keys new {directory}`")
    try:
        check_named(path)
    except NotPrivate as error:
        raise KeysError(str(error)) from None
    return DaemonKeys(public, secret, directory / "agents")


def authorize(directory: Path, name: str) -> tuple[str, str]:
    """Makes a pair for a name; returns what its agents need. The secret key is returned and not kept."""
    if not NAME.fullmatch(name):
        raise KeysError(f"{name!r} is no name for a key: use 1 to 64 of the characters A-Z a-z 0-9 _ . @ -")
    keys, file = load(directory), directory / "agents" / f"{name}.key"
    if file.exists():
        raise KeysError(f"{name} is authorised already; revoke it first, or choose another name")
    file.parent.mkdir(exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=directory) as aside:  # a daemon must not read half a file
        made, secret_file = zmq.auth.create_certificates(aside, name)
        _, secret = zmq.auth.load_certificate(secret_file)
        Path(made).rename(file)
    assert secret is not None, "a secret certificate has a secret key"
    return keys.public.decode(), secret.decode()


def revoke(directory: Path, name: str) -> None:
    """Removes the key of a name."""
    names = [key.name for key in authorised(directory / "agents")]
    if name not in names:
        raise KeysError(f"{name} is not authorised in {directory}; authorised: {', '.join(names) or 'none'}")
    (directory / "agents" / f"{name}.key").unlink()
    (directory / "agents" / f"{name}.key_secret").unlink(missing_ok=True)


def authorised(agents_dir: Path, on_bad: Callable[[str], None] | None = None) -> list[AuthorisedKey]:
    """All that may report, by name; for a file that cannot be read, `on_bad` is called, else KeysError is raised."""
    found = []
    for file in sorted(agents_dir.glob("*.key")):
        try:
            public, _ = zmq.auth.load_certificate(file)
            found.append(AuthorisedKey(file.name.removesuffix(".key"), public.decode(), file.stat().st_mtime))
        except FileNotFoundError:  # revoked meanwhile
            continue
        except (OSError, ValueError) as error:
            text = f"{file}: {error}; remove it, or authorise the name again"
            if on_bad is None:
                raise KeysError(text) from None
            on_bad(text)
    return found
