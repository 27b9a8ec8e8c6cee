"""Default addresses, and address checks used by agent and daemon."""

import ipaddress
import re

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5757"
DEFAULT_HTTP = "127.0.0.1:9757"

MAX_PATH_BYTES = 107
"""Of a socket file, on Linux."""

_TCP = re.compile(r"tcp://(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]/]+):(?P<port>\d{1,5}|\*)")


def split_tcp(endpoint: str) -> tuple[str, int]:
    """Host and port of `tcp://host:port`; ValueError for anything else."""
    match = _TCP.fullmatch(endpoint)
    if match is None:
        raise ValueError(f"{endpoint!r} is not of the form tcp://host:port")
    return match["host"], _port(match["port"].replace("*", "0"), endpoint)


def split_endpoint(endpoint: str) -> tuple[str, str]:
    """Scheme and the rest of `tcp://host:port` or `ipc:///path`; ValueError for anything else."""
    scheme, _, rest = endpoint.partition("://")
    if scheme != "ipc":
        if scheme != "tcp":
            raise ValueError(f"{endpoint!r} is not of the form tcp://host:port or ipc:///path")
        split_tcp(endpoint)
    elif not rest.startswith("/") or len(rest.encode()) > MAX_PATH_BYTES:
        raise ValueError(f"{endpoint!r} needs an absolute path of at most {MAX_PATH_BYTES} bytes")
    return scheme, rest


def is_local(endpoint: str) -> bool:
    """Whether what is at this endpoint is on this machine, and can be reached from nowhere else."""
    scheme, _ = split_endpoint(endpoint)
    return scheme == "ipc" or is_loopback(split_tcp(endpoint)[0])


def split_http(address: str) -> tuple[str, int]:
    """Host and port of `host:port`; ValueError for anything else."""
    match = _TCP.fullmatch(f"tcp://{address}")
    if match is None:
        raise ValueError(f"{address!r} is not of the form host:port")
    return match["host"].strip("[]"), _port(match["port"].replace("*", "0"), address)


def _port(text: str, whole: str) -> int:
    port = int(text)
    if port > 65_535:
        raise ValueError(f"{whole!r} has port {port}; the maximum is 65535")
    return port


def is_loopback(host: str) -> bool:
    """Whether a bind to this host can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name may resolve to anything
