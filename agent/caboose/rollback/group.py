"""Connects the ranks at attach: rank 0 opens the register's store and broadcasts its address and a key.

Design
------
One broadcast on the default process group, of a tensor of fixed size: address, port, the group's nonce and the key for
the register's MACs. The tensor holds bytes of a known layout; nothing is pickled. If rank 0 cannot open a port it
broadcasts the reason, so that all ranks raise instead of one waiting for another.

The store listens on loopback if the job's master address is loopback, else on all interfaces, like the process group's
own. Ranks connect later, on their helper's thread: a connection is a name lookup and a handshake, which on a cluster
may take seconds. A rank that is not connected yet acknowledges nothing, and nothing happens without it. The server
exists as long as rank 0's process: another rank may still be at a boundary after rank 0 has closed its monitor, and
must be able to read rank 0's veto.

A world of one needs no server: its register is a store in memory.
"""

import ipaddress
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined] # public, but not listed as such

from caboose.rollback.agreement import collective_device
from caboose.rollback.register import Store

NUM_BYTES = 512
CONNECT_SECONDS = 60.0
PROBE_SECONDS = 30.0
_servers: list[TCPStore] = []


class _Invitation(msgspec.Struct, frozen=True, array_like=True):
    host: str = ""
    port: int = 0
    nonce: str = ""
    key: bytes = b""
    error: str = ""


@dataclass(frozen=True)
class RankGroup:
    """What all ranks of one attach have in common."""

    rank: int
    world: int
    nonce: str
    key: bytes = field(repr=False)
    open_store: Callable[[], Store] = field(repr=False)
    """A new connection to the register's store; blocks, so not for the training thread."""


def open_group(rank: int, world: int) -> RankGroup:
    """Opens the register's store and broadcasts its address. All ranks call it; the only collective at attach."""
    if world == 1:
        store = HashStore()
        return RankGroup(rank, world, secrets.token_hex(16), secrets.token_bytes(32), lambda: store)
    if not dist.is_initialized():
        raise ValueError(
            f"rollback='auto' with {world} ranks needs torch.distributed.init_process_group() before attach"
        )
    invitation = _broadcast(_invite() if rank == 0 else None)
    if invitation.error:
        raise ValueError(f"rollback='auto' needs a port on the host of rank 0: {invitation.error}")
    return RankGroup(rank, world, invitation.nonce, invitation.key, lambda: connect(invitation.host, invitation.port))


def connect(host: str, port: int) -> TCPStore:
    """A new client. A refused connection means that the server's process is gone."""
    # Checked with a plain socket first: a store that finds no server retries for its whole timeout, and fills the
    # job's log with a native stack trace each time.
    socket.create_connection((host, port), timeout=PROBE_SECONDS).close()
    return TCPStore(host, port, None, False, timedelta(seconds=CONNECT_SECONDS), wait_for_workers=False)


def serve(host: str) -> TCPStore:
    """A server on a free port: on loopback alone where the host is that, else on all interfaces."""
    if _is_loopback(host):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, 0), family=family, backlog=1024)
    elif socket.has_dualstack_ipv6():
        listening = socket.create_server(("", 0), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    else:
        listening = socket.create_server(("", 0), backlog=1024)
    port = listening.getsockname()[1]
    near = host if _is_loopback(host) else "127.0.0.1"  # its own connection needs no name lookup
    return TCPStore(near, port, None, True, wait_for_workers=False, master_listen_fd=listening.detach())


def _invite() -> _Invitation:
    try:
        host = _host()
        server = serve(host)
    except (OSError, RuntimeError) as error:
        return _Invitation(error=str(error)[:300])
    _servers.append(server)
    return _Invitation(host, server.port, secrets.token_hex(16), secrets.token_bytes(32))


def _broadcast(invitation: _Invitation | None) -> _Invitation:
    words = torch.zeros(NUM_BYTES, dtype=torch.uint8)
    if invitation is not None:
        encoded = msgspec.msgpack.encode(invitation)
        framed = len(encoded).to_bytes(2, "big") + encoded
        words[: len(framed)] = torch.frombuffer(bytearray(framed), dtype=torch.uint8)
    words = words.to(collective_device())
    dist.broadcast(words, src=0)
    received = bytes(words.cpu().tolist())
    length = int.from_bytes(received[:2], "big")
    return msgspec.msgpack.decode(received[2 : 2 + length], type=_Invitation)


def _host() -> str:
    """The address of this process for other ranks: the master address if it is this host's, else its own."""
    master = os.environ.get("MASTER_ADDR", "")
    if master and _is_here(master):
        return "127.0.0.1" if master == "localhost" else master
    name = socket.gethostname()
    return name if _is_here(name) and not _is_loopback(socket.gethostbyname(name)) else _outward_address()


def _is_here(host: str) -> bool:
    """Whether the address is this machine's: only those can be bound."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
    except OSError:
        pass
    return False


def _outward_address() -> str:
    """The address of packets to other machines; loopback if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address; connecting a datagram socket sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
