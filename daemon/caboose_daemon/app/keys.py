"""CURVE keys for the report socket: one pair for the daemon, one for the agents that may report."""

from dataclasses import dataclass
from pathlib import Path

import zmq
import zmq.auth

from caboose_wire.private_files import NotPrivate, check_named

DAEMON, AGENT = "daemon", "agent"


class KeysError(ValueError):
    """Keys cannot be made or read; the message names the reason and the fix."""


@dataclass(frozen=True)
class DaemonKeys:
    """The daemon's key pair and the directory of the agents' public keys."""

    public: bytes
    secret: bytes
    agents_dir: Path


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
