"""Peers that are not admitted yet, and the messages that they have sent meanwhile, within bounds."""

import math
from collections import deque
from dataclasses import dataclass, field

from caboose_wire import Hello, Message, WireError

MAX_HELD_PER_PEER = 1200
"""A little more than an agent's own queue, which arrives at once when the daemon comes back."""
MAX_HELD_BYTES = 256 * 1024 * 1024


@dataclass
class Stranger:
    """A peer that is not admitted yet. `has_rolled_back`: it waits until the other ranks report the rollback."""

    asked: float = -math.inf
    last_seen: float = 0.0
    hello: Hello | None = None
    key: str = ""
    since: float = 0.0
    has_rolled_back: bool = False
    is_notified: bool = False
    """Whether it knows that its job's name is in use."""
    held: deque[tuple[Message, int]] = field(default_factory=deque)
    """Messages so far, with the size of each in bytes."""


class Strangers:
    """All of them, by their connections."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._peers: dict[bytes, Stranger] = {}
        self._held_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._peers)

    def get(self, peer: bytes) -> Stranger | None:
        return self._peers.get(peer)

    def items(self) -> list[tuple[bytes, Stranger]]:
        """A copy: who is looked at may be admitted."""
        return list(self._peers.items())

    def add(self, peer: bytes, now: float) -> Stranger:
        """The peer's entry, made where there is none."""
        stranger = self._peers.get(peer)
        if stranger is None:
            if len(self._peers) >= self._most:
                raise WireError("capacity", "too many peers wait to be introduced")
            stranger = self._peers[peer] = Stranger(last_seen=now)
        return stranger

    def hold(self, stranger: Stranger, message: Message, size: int) -> bool:
        """Keeps a message until its peer is admitted; whether its oldest one was dropped for it."""
        if self._held_bytes + size > MAX_HELD_BYTES:
            raise WireError("unknown_peer", "too many messages are held back already")
        is_full = len(stranger.held) == MAX_HELD_PER_PEER
        if is_full:
            self._held_bytes -= stranger.held.popleft()[1]
        stranger.held.append((message, size))
        self._held_bytes += size
        return is_full

    def pop(self, peer: bytes) -> Stranger | None:
        """Removes a peer, with what was held of it."""
        stranger = self._peers.pop(peer, None)
        if stranger is not None:
            self._held_bytes -= sum(size for _, size in stranger.held)
        return stranger
