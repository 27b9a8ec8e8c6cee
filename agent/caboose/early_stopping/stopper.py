"""What `monitor.should_stop` and `monitor.is_best` answer.

Design
------
Off until it is asked for the first time, or configured: a run that does not use it pays nothing. From then on each
validation is published at once, and settled when the answer is read; all ranks read it at the same place of their
loops, like a collective. Settled values enter `Patience` in order, so the answer depends on nothing but them.

Never raises. Where the ranks do not agree, or the store fails, it stays off: False on this rank, with one log line.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from caboose.early_stopping.agreement import Agreement, DisagreementError, Store
from caboose.early_stopping.patience import PATIENCE, Patience

logger = logging.getLogger("caboose")

SECONDS = 60.0
"""How long a rank waits for the others' values."""
MAX_KEPT = 10_000


class Stopper:
    """The validations of one rank, and the answers of all of them."""

    def __init__(self, rank: int, world: int, open_store: Callable[[], Store] | None = None) -> None:
        self._rank, self._world = rank, world
        self._open_store = open_store or _default_store
        self._agreement: Agreement | None = None
        self._patience = Patience()
        self._metric = "loss"
        self._seconds = SECONDS
        self._is_on = False
        self._why_off = ""
        self._kept: list[Mapping[str, Any]] = []
        """Validations from before it was turned on."""
        self._own: list[float] = []
        self._num_settled = 0

    def configure(
        self,
        patience: int = PATIENCE,
        *,
        metric: str = "loss",
        mode: str = "min",
        min_delta: float = 0.0,
        seconds: float = SECONDS,
    ) -> None:
        """Before the first answer; the same on all ranks."""
        if not isinstance(patience, int) or patience < 1:
            raise ValueError(f"early_stopping(patience={patience!r}): give a whole number of validations, at least 1")
        if mode not in ("min", "max"):
            raise ValueError(f"early_stopping(mode={mode!r}): use 'min' or 'max'")
        if not (math.isfinite(min_delta) and min_delta >= 0):
            raise ValueError(f"early_stopping(min_delta={min_delta!r}): give a number of at least 0")
        self._patience = Patience(patience, min_delta, is_higher_better=mode == "max")
        self._metric, self._seconds = metric, seconds
        self._turn_on()

    def note(self, fields: Mapping[str, Any]) -> None:
        """A validation, as it was reported on this rank."""
        if self._why_off:
            return
        if not self._is_on:
            if len(self._kept) < MAX_KEPT:
                self._kept.append(dict(fields))
            return
        value = fields.get(self._metric)
        if value is None:
            return
        self._own.append(float(value))
        try:
            if self._agreement is not None:
                self._agreement.publish(len(self._own), self._own[-1])
        except Exception as error:  # noqa: BLE001 - the store's server may be gone
            self._turn_off(f"the store of the process group failed: {error}")

    @property
    def should_stop(self) -> bool:
        """Whether patience has run out; the same on all ranks that read it at the same place."""
        self._settle()
        return not self._why_off and self._patience.should_stop

    @property
    def is_best(self) -> bool:
        """Whether the last validation is the best so far; likewise."""
        self._settle()
        return not self._why_off and self._patience.is_best

    @property
    def best(self) -> float | None:
        """The best value so far; of this rank's own values if nothing was settled."""
        return self._patience.best

    @property
    def best_number(self) -> int | None:
        """The place of the best one among the validations."""
        return self._patience.best_at

    def _turn_on(self) -> None:
        self._is_on = True
        if self._world > 1 and self._agreement is None:
            try:
                self._agreement = Agreement(self._open_store(), self._rank, self._world, self._seconds)
            except Exception as error:  # noqa: BLE001 - no process group, or one without a store
                self._turn_off(f"{self._world} ranks need torch.distributed to agree: {error}")
                return
        kept, self._kept = self._kept, []
        for fields in kept:
            self.note(fields)

    def _settle(self) -> None:
        if not self._is_on and not self._why_off:
            self._turn_on()
        while not self._why_off and self._num_settled < len(self._own):
            try:
                value = self._settled(self._num_settled + 1)
            except DisagreementError as error:
                self._turn_off(
                    f"{error} (validation {self._num_settled + 1}); pass the same value on every rank to "
                    "monitor.validation, as the mean by torch.distributed.all_reduce"
                )
                return
            except Exception as error:  # noqa: BLE001 - the store's server may be gone
                self._turn_off(f"the store of the process group failed: {error}")
                return
            self._num_settled += 1
            self._patience.add(value)

    def _settled(self, number: int) -> float:
        return self._own[number - 1] if self._agreement is None else self._agreement.settle(number)

    def _turn_off(self, why: str) -> None:
        self._why_off = why
        self._kept.clear()
        if self._rank == 0:
            logger.warning("caboose: monitor.should_stop stays False: %s", why)


_num_opened = 0


def _default_store() -> Store:
    """The store of the process group, under a prefix of this run's own; called in the same order on all ranks."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    global _num_opened
    if not dist.is_initialized():
        raise RuntimeError("init_process_group was not called")
    _num_opened += 1
    store: Store = PrefixStore(f"caboose/early-stopping/{_num_opened}", _get_default_store())
    return store
