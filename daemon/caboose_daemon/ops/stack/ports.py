"""The ports of a stack: the ones that people know, where they are free."""

import socket
from collections.abc import Mapping

USUAL: Mapping[str, int] = {"reports": 5757, "daemon": 9757, "prometheus": 9090, "alertmanager": 9093}
"""Ports that documentation, data sources and agents expect."""


def choose(name: str, *, is_usual: bool) -> int:
    """The part's usual port if that is wanted and free, else any free one."""
    usual = USUAL[name]
    return usual if is_usual and is_free(usual) else free()


def free() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a program could listen at this port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
