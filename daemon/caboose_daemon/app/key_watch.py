"""Follows the authorised keys while the daemon runs, and closes the connections of those that were revoked.

Design
------
ZeroMQ asks once, at the handshake (`callback`, on the authenticator's thread), and never again. So revoking takes two
steps here, both on the loop's thread. The directory of keys is looked at once a second and on SIGHUP; a file that
cannot be read authorises nobody, and the others count. And each message is checked by the key of its connection (the
`User-Id` of the handshake): a message of a key that is no longer authorised is dropped, so a connection
that stays open can do nothing. The descriptor of each connection is noted with its first message, so a silent one is
closed too; a descriptor is closed only if it is a connection of the report socket's port. If the number was taken by a
newer connection meanwhile, that peer connects again. Closing works on Linux only.

A key is added at the handshake too: an agent that is refused once does not come back, so a key must be valid from the
moment it is printed.

The key of a message is read only where keys are used.
"""

import contextlib
import logging
import threading
from pathlib import Path

import zmq

from caboose_daemon.app.keys import AuthorisedKey, authorised
from caboose_daemon.app.report_connections import Received, ReportConnections

logger = logging.getLogger("caboose.daemon")

CHECK_SECONDS = 1.0
MAX_CONNECTIONS = 50_000

Signature = tuple[tuple[str, int, int], ...]


class KeyWatch:
    """The keys that may report; a credentials provider of pyzmq's authenticator."""

    def __init__(self, agents_dir: Path) -> None:
        self._directory = agents_dir
        self._signature = self._look()
        self._keys = {key.public: key for key in authorised(agents_dir, _ignored)}
        self._connections: dict[bytes, tuple[str, int]] = {}
        """Key and descriptor of each peer that has sent a message."""
        self._next_check = 0.0
        self._is_asked = threading.Event()
        self._changing = threading.Lock()

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a key may report now; on the authenticator's thread."""
        public = key.decode("ascii", "replace")
        return public in self._keys or self._is_new(public)

    def _is_new(self, public: str) -> bool:
        """Whether a key was authorised since the last check."""
        with self._changing:
            if self._look() == self._signature:
                return False
            found = {key.public: key for key in authorised(self._directory, on_bad=logger.debug)}
            if public in found:
                self._keys = {**self._keys, public: found[public]}
            return public in found

    def ask(self) -> None:
        """Reads the directory at the next check, changed or not; on any thread."""
        self._is_asked.set()

    def key_of(self, message: Received) -> str | None:
        """The key of a message's connection; None if it may not report any more."""
        key = str(message.first.get("User-Id"))
        if message.peer not in self._connections:
            self._note(message.peer, key, message.first)
        return key if key in self._keys else None

    def _note(self, peer: bytes, key: str, frame: zmq.Frame) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            self._connections.clear()
        with contextlib.suppress(zmq.ZMQError, KeyError, ValueError):
            self._connections[peer] = key, int(frame.get(zmq.SRCFD))

    def check(self, now: float, connections: ReportConnections) -> list[bytes]:
        """Follows the directory; returns the peers whose key was revoked, after closing their connections."""
        if now < self._next_check and not self._is_asked.is_set():
            return []
        self._next_check = now + CHECK_SECONDS
        return self._revoke(self._reload(), connections)

    def _reload(self) -> dict[str, AuthorisedKey]:
        """Reads the directory if it has changed or this was asked for; returns the keys that are gone."""
        with self._changing:
            signature = self._look()
            if signature == self._signature and not self._is_asked.is_set():
                return {}
            self._is_asked.clear()
            self._signature = signature
            keys = {key.public: key for key in authorised(self._directory, _ignored)}
            before, self._keys = self._keys, keys
        return {public: key for public, key in before.items() if public not in keys}

    def _revoke(self, gone: dict[str, AuthorisedKey], connections: ReportConnections) -> list[bytes]:
        if not gone:
            return []
        peers = [peer for peer, (key, _) in self._connections.items() if key in gone]
        closed = connections.close({self._connections.pop(peer)[1] for peer in peers})
        names = ", ".join(sorted(key.name for key in gone.values()))
        logger.warning("revoked: %s; %d of their connections closed", names, closed)
        return peers

    def _look(self) -> Signature:
        """What differs once the directory changed."""
        found = []
        with contextlib.suppress(OSError):
            for file in sorted(self._directory.glob("*.key")):
                with contextlib.suppress(OSError):
                    info = file.stat()
                    found.append((file.name, info.st_mtime_ns, info.st_size))
        return tuple(found)


def _ignored(problem: str) -> None:
    logger.error("this key is not authorised: %s", problem)
