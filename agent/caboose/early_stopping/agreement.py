"""One value of each validation for all ranks, or the reason why there is none.

Design
------
An answer that differs between ranks would leave some of them waiting forever in a collective that the others never
enter. So nothing is decided from a message that may arrive at one rank earlier than at another. Each rank writes the
value that its own loop was given into the store of the process group, and reads those of all others; the first rank
that has seen all of them, or has waited long enough, seals the result with a compare-and-set. Every rank follows the
seal, also one that saw something else meanwhile.

The values must be equal bit for bit: a mean over the ranks that each of them computes by the same all-reduce is. If
they are not, or a rank reports none in time, the result is sealed as failed, and no rank ever stops.

The store is asked without a blocking wait, since other threads of the process may use the same connection.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

POLL_SECONDS = 0.005
FAILED = "failed "
VALUE = "value "


class Store(Protocol):
    """What is needed of a `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> Any: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...


class DisagreementError(Exception):
    """Why there is no common value; the same text on all ranks."""


class Agreement:
    """The values of one run's validations."""

    def __init__(
        self, store: Store, rank: int, world: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._rank = rank
        self._world = world
        self._seconds = seconds
        self._clock = clock

    def publish(self, number: int, value: float) -> None:
        """This rank's value of a validation."""
        self._store.set(f"{number}/of/{self._rank}", float(value).hex())

    def settle(self, number: int) -> float:
        """The value of all ranks; waits for those that have not published theirs. Raises `DisagreementError`."""
        keys = [f"{number}/of/{rank}" for rank in range(self._world)]
        sealed = f"{number}/sealed"
        until = self._clock() + self._seconds
        while not self._store.check(keys):
            if self._store.check([sealed]) or self._clock() >= until:
                break
            time.sleep(POLL_SECONDS)
        answer = self._store.compare_set(sealed, "", self._proposal(keys)).decode()
        if answer.startswith(VALUE):
            return float.fromhex(answer.removeprefix(VALUE))
        raise DisagreementError(answer.removeprefix(FAILED))

    def _proposal(self, keys: list[str]) -> str:
        """The result as far as this rank can see."""
        missing = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
        if missing:
            return f"{FAILED}rank {', '.join(missing[:8])} reported no validation within {self._seconds:g} s"
        values = [self._store.get(key).decode() for key in keys]
        apart = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if apart is None:
            return f"{VALUE}{values[0]}"
        first, other = float.fromhex(values[0]), float.fromhex(values[apart])
        return f"{FAILED}rank 0 reported {first:.6g} and rank {apart} {other:.6g}"
