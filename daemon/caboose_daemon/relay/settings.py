"""What `caboose relay` is started with, checked before anything is bound."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from caboose_daemon.app import keys as key_files
from caboose_wire.curve_keys import read_keys
from caboose_wire.endpoints import is_local, split_endpoint

HOLD_SECONDS = 0.05
BUFFER_BYTES = 64 * 1024 * 1024


class RelayError(RuntimeError):
    """The relay cannot start; the message is one line with the reason and the fix."""


@dataclass(frozen=True)
class UpstreamKeys:
    """Keys of the connection to what is upstream, in ZeroMQ's text form."""

    server_public: str
    secret: str


@dataclass(frozen=True)
class RelaySettings:
    """Where a relay listens and what it sends to, with their keys and bounds."""

    listen: Sequence[str]
    upstream: str
    name: str
    keys: key_files.DaemonKeys | None = None
    """Of the ranks and relays that report to it."""
    upstream_keys: UpstreamKeys | None = None
    hold_seconds: float = HOLD_SECONDS
    """For how long a report may wait for those of the other ranks."""
    buffer_bytes: int = BUFFER_BYTES


def resolve(
    env: Mapping[str, str],
    *,
    listen: Sequence[str],
    upstream: str,
    keys: str = "",
    name: str = "",
    hold_seconds: float = HOLD_SECONDS,
    buffer_bytes: int = BUFFER_BYTES,
    is_insecure: bool = False,
) -> RelaySettings:
    """The settings; RelayError names what is wrong and the way out."""
    for option, endpoint in [*(("--listen", one) for one in listen), ("--upstream", upstream)]:
        try:
            split_endpoint(endpoint)
        except ValueError as error:
            raise RelayError(f"{option}: {error}") from None
    if upstream in listen:
        raise RelayError(f"--upstream {upstream} is this relay's own address; give that of the daemon")
    exposed = [one for one in listen if not is_local(one)]
    if exposed and not keys and not is_insecure:
        raise RelayError(
            f"--listen {exposed[0]} is reachable from other machines, and no keys are set: make them with "
            "`caboose keys new DIR` and pass --keys DIR (or --insecure on a network you trust)"
        )
    return RelaySettings(
        listen=tuple(listen),
        upstream=upstream,
        name=name or env.get("CABOOSE_RELAY_NAME", "") or socket.gethostname(),
        keys=_load(keys) if keys else None,
        upstream_keys=_upstream_keys(env, upstream, is_insecure=is_insecure),
        hold_seconds=hold_seconds,
        buffer_bytes=buffer_bytes,
    )


def _load(directory: str) -> key_files.DaemonKeys:
    try:
        return key_files.load(Path(directory).expanduser())
    except key_files.KeysError as error:
        raise RelayError(str(error)) from None


def _upstream_keys(env: Mapping[str, str], upstream: str, *, is_insecure: bool) -> UpstreamKeys | None:
    """As an agent's: a relay is to what is upstream what a rank is to its daemon."""
    try:
        keys = read_keys(env)
    except ValueError as error:
        raise RelayError(str(error)) from None
    if keys is not None:
        return UpstreamKeys(*keys)
    if not is_local(upstream) and not is_insecure:
        raise RelayError(
            f"--upstream {upstream} is not on this machine, and no keys are set: set CABOOSE_SERVER_KEY and "
            "CABOOSE_AGENT_KEY (`caboose keys new` prints both), or --insecure on a network you trust"
        )
    return None


def make_way(endpoint: str) -> None:
    """Removes the socket file of a relay that was killed; RelayError if another file is in its place."""
    scheme, rest = split_endpoint(endpoint)
    if scheme != "ipc":
        return
    path = Path(rest)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.is_socket():
            if _is_listening(path):
                raise RelayError(f"--listen {endpoint}: another relay listens there; stop it, or choose another path")
            path.unlink()
        elif path.exists():
            raise RelayError(f"--listen {endpoint}: {path} exists, and is no socket; choose another path")
    except OSError as error:
        raise RelayError(f"--listen {endpoint}: {error.strerror or error}") from None


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def set_access(endpoint: str, *, is_open: bool) -> None:
    """Who may connect to a socket file: every user of this machine where keys are used, else only this one."""
    scheme, rest = split_endpoint(endpoint)
    if scheme == "ipc":
        Path(rest).chmod(0o666 if is_open else 0o600)
