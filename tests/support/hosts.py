"""Several hosts on one machine: network namespaces, each with its own address, joined by a bridge in one more.

Nothing is added to this machine's own network. Needs root and a kernel with veth and bridges; `why_not` has the reason.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
NEW_NETWORK = 0x40000000
"""CLONE_NEWNET."""


def ip(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20)


@cache
def why_not() -> str:
    """Why there can be no hosts here; empty if there can."""
    if shutil.which("ip") is None:
        return "`ip` is not installed (Debian: iproute2)"
    name = f"caboose-probe-{os.getpid()}"
    ended = ip("netns", "add", name)
    if ended.returncode:
        return f"no network namespaces: {ended.stderr.strip()}"
    try:
        made = ip("-n", name, "link", "add", "sw", "type", "bridge")
        pair = ip("-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        return (made.stderr + pair.stderr).strip()
    finally:
        ip("netns", "del", name)


class Host:
    """One of them."""

    def __init__(self, switch: str, number: int) -> None:
        self.name = f"{switch}-{number}"
        self.address = f"10.77.0.{number}"
        self._switch, self._port = switch, f"port{number}"

    def connect(self) -> None:
        """Makes its link, as when a machine boots."""
        for arguments in (
            ("-n", self._switch, "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", self.name),
            ("-n", self._switch, "link", "set", self._port, "master", "sw", "up"),
            ("-n", self.name, "address", "add", f"{self.address}/24", "dev", "eth0"),
            ("-n", self.name, "link", "set", "eth0", "up"),
            ("-n", self.name, "link", "set", "lo", "up"),
        ):
            ended = ip(*arguments)
            assert ended.returncode == 0, (arguments, ended.stderr)

    def cut(self) -> None:
        """Nothing comes through its link, and nobody is notified."""
        ip("-n", self._switch, "link", "set", self._port, "nomaster")

    def heal(self) -> None:
        ip("-n", self._switch, "link", "set", self._port, "master", "sw")

    def reboot(self) -> None:
        """Every process is gone at once, and the link is a new one."""
        for pid in ip("netns", "pids", self.name).stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        ip("-n", self._switch, "link", "del", self._port)
        self.connect()

    def command(self, command: list[str]) -> list[str]:
        """What starts a command on it."""
        return ["ip", "netns", "exec", self.name, *command]

    def inside(self, function: Callable[[], T]) -> T:
        """Calls a function on it: the sockets that it opens are its own."""

        def run() -> T:
            with (Path("/run/netns") / self.name).open() as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), NEW_NETWORK):
                    raise OSError(ctypes.get_errno(), "setns")
            return function()

        with ThreadPoolExecutor(1) as pool:  # a thread of its own: it never comes back to this machine's network
            return pool.submit(run).result()


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Connected hosts, gone with the block, and all that still runs on them."""
    switch = f"caboose-{os.getpid()}"
    made = [Host(switch, number) for number in range(1, count + 1)]
    try:
        for name in (switch, *(host.name for host in made)):
            assert ip("netns", "add", name).returncode == 0
        ip("-n", switch, "link", "add", "sw", "type", "bridge")
        ip("-n", switch, "link", "set", "sw", "up")
        for host in made:
            host.connect()
        yield made
    finally:
        for name in (*(host.name for host in made), switch):
            for pid in ip("netns", "pids", name).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)
            ip("netns", "del", name)
