"""The register in which the ranks decide: who published what, who is ready, and the one decision per command.

Design
------
A thin layer over a `torch.distributed.Store`. Per command there are four kinds of keys, under a prefix with the
group's nonce, so that no other job and no earlier attempt is ever read:

    rb/<group>/<number>/cmd         the command, written once
    rb/<group>/<number>/ack/<rank>  this rank has armed
    rb/<group>/<number>/acks        how many have (a hint, which saves reading the others too early)
    rb/<group>/<number>/d           the decision, written once: commit, or abort with the reason

Writes that must be confirmed use `compare_set` from the empty value: `set` returns before the server has the value, and
comparing an absent key with anything but the empty value writes nothing but reports success. Reads are `check`, then
`get` of an existing key: `get` of an absent key would block the connection.

A store authenticates nobody, so every value carries an HMAC over its key and itself; a value without a valid one is no
command, no acknowledgement, and no commit. The counter has none and only counts together with all the acknowledgements.
Whoever can delete or overwrite keys can still do harm, like anyone with access to the process group: the store is in
the same domain of trust.

Used by one thread, on its own connection. A frozen server blocks the caller forever, a dead one raises at once.
"""

import base64
import hmac
from dataclasses import dataclass
from typing import Protocol

import msgspec

from caboose_wire import Command

MAX_REASON = 300
NUM_ACKS_KEPT = 16
_COMMIT = "C"
_ABORT = "A:"
_READY = "Y"
_GAP = "-"


class Store(Protocol):
    """The part of a `torch.distributed.Store` that is used; nothing waits for a key."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all exist."""

    def get(self, key: str, /) -> bytes:
        """The value of a key that exists."""

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """The values of keys that exist."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Writes if the expected value is found; returns the value afterwards."""

    def add(self, key: str, amount: int, /) -> int:
        """Adds to a counter and returns it."""

    def delete_key(self, key: str, /) -> bool:
        """Forgets a key."""


@dataclass(frozen=True, slots=True)
class Seal:
    """The decision on a command; the same for all ranks."""

    is_commit: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RegisterEntry:
    """The entry of a command's number: the command, or why there is none."""

    command: Command | None
    flaw: str = ""


class Register:
    """One rank's connection to the register of its group."""

    def __init__(self, store: Store, *, group: str, key: bytes, rank: int, world: int) -> None:
        self._store = store
        self._prefix = f"rb/{group}"
        self._key = key
        self._rank = rank
        self._world = world

    def publish(self, command: Command) -> RegisterEntry:
        """Publishes the command to all ranks; returns the one that has its number, which may be another."""
        text = base64.b64encode(msgspec.msgpack.encode(command)).decode()
        return self._entry(command.number, self._write_once(f"{command.number}/cmd", text))

    def close_gap(self, number: int) -> RegisterEntry:
        """Closes this number, unless a command has it, so that no rank waits for it."""
        return self._entry(number, self._write_once(f"{number}/cmd", _GAP))

    def find(self, number: int) -> RegisterEntry | None:
        """The command with this number, if any rank has published one."""
        name = f"{number}/cmd"
        return self._entry(number, self._read(name)) if self._has(name) else None

    def acknowledge(self, number: int) -> None:
        """Records that this rank has armed; may be repeated."""
        self._write_once(f"{number}/ack/{self._rank}", _READY)
        self._store.add(self._path(f"{number}/acks"), 1)
        if number > NUM_ACKS_KEPT:  # decided long ago; the acknowledgements need not be kept
            self._store.delete_key(self._path(f"{number - NUM_ACKS_KEPT}/ack/{self._rank}"))

    def num_acks(self, number: int) -> int:
        """How many ranks have armed; a hint."""
        return int(self._store.add(self._path(f"{number}/acks"), 0))

    def is_complete(self, number: int) -> bool:
        """Whether every rank has armed, each with its own acknowledgement."""
        if self.num_acks(number) < self._world:
            return False
        names = [f"{number}/ack/{rank}" for rank in range(self._world)]
        paths = [self._path(name) for name in names]
        if not self._store.check(paths):
            return False
        values = self._store.multi_get(paths)
        return all(self._opened(name, value) == _READY for name, value in zip(names, values, strict=True))

    def decision(self, number: int) -> Seal | None:
        """The decision, if there is one."""
        name = f"{number}/d"
        return _decision(self._read(name)) if self._has(name) else None

    def seal(self, number: int, decision: Seal) -> Seal:
        """Decides, unless it is decided already; returns the decision."""
        reason = decision.reason[:MAX_REASON].encode(errors="replace").decode()
        text = _COMMIT if decision.is_commit else _ABORT + reason
        return _decision(self._write_once(f"{number}/d", text))

    def _entry(self, number: int, text: str | None) -> RegisterEntry:
        if text is None:
            return RegisterEntry(None, f"what the register holds as command {number} is not from a rank of this group")
        if text == _GAP:
            return RegisterEntry(None)
        try:
            command = msgspec.msgpack.decode(base64.b64decode(text), type=Command)
        except (ValueError, msgspec.MsgspecError) as error:
            return RegisterEntry(None, f"command {number} in the register cannot be read: {error}")
        if command.number != number:
            return RegisterEntry(None, f"the register holds command {command.number} as {number}")
        return RegisterEntry(command)

    def _path(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _has(self, name: str) -> bool:
        return bool(self._store.check([self._path(name)]))

    def _read(self, name: str) -> str | None:
        return self._opened(name, self._store.get(self._path(name)))

    def _write_once(self, name: str, text: str) -> str | None:
        """The value afterwards; None if it is forged."""
        mac = self._mac(name, text)
        return self._opened(name, self._store.compare_set(self._path(name), "", f"{mac}:{text}"))

    def _opened(self, name: str, value: bytes) -> str | None:
        mac, _, text = value.decode(errors="replace").partition(":")
        return text if hmac.compare_digest(mac.encode(), self._mac(name, text).encode()) else None

    def _mac(self, name: str, text: str) -> str:
        return hmac.digest(self._key, f"{self._path(name)}\0{text}".encode(), "sha256").hex()


def _decision(text: str | None) -> Seal:
    if text == _COMMIT:
        return Seal(True)
    if text is None or not text.startswith(_ABORT):
        return Seal(False, "the decision in the register is not from a rank of this group")
    return Seal(False, text.removeprefix(_ABORT))
