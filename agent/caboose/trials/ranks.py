"""The ranks that hold one model: sums over all of them, and gradients averaged as by DDP.

Design
------
A trial calls the module inside DDP, not DDP: its reducer learns the order of gradients in its first backward and
rebuilds its buckets, which could not be undone. So gradients are averaged here instead. Ranks read their own data and
must still do the same things in the same order; whatever decides that (a loss to stop at) is the mean over the ranks.
What may raise on one rank alone (the user's loss, the user's data) is run `together`: the others raise too, with that
rank's message, instead of waiting for it in the next exchange. A model that is neither DDP nor FSDP2 belongs to one
rank: nothing is sent.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import distributed as dist

T = TypeVar("T")
MAX_TEXT = 2_000
"""Bytes of a text that one rank sends to the others."""


class FailedElsewhere(RuntimeError):
    """Another rank raised; the message is that rank's."""


class Ranks:
    """The ranks of one trial."""

    def __init__(self, group: Any, device: torch.device, *, is_replicated: bool) -> None:
        self._group = group
        self._device = device
        self._is_replicated = is_replicated
        self.num = dist.get_world_size(group) if group is not None else 1
        self.rank = dist.get_rank(group) if group is not None else 0

    def total(self, values: Sequence[float] | torch.Tensor, how: Any = None) -> torch.Tensor:
        """The sum over the ranks, element by element, or another reduction `how`; on the host."""
        tensor = torch.as_tensor(values, dtype=torch.float64).to(self._device, copy=True)
        if self.num > 1:
            dist.all_reduce(tensor, op=how or dist.ReduceOp.SUM, group=self._group)
        return tensor.cpu()

    def mean(self, value: float) -> float:
        """The mean over the ranks."""
        return float(self.total([value])[0]) / self.num

    def least(self, value: int) -> int:
        """The smallest of the ranks'."""
        return int(-self.total([-float(value)], dist.ReduceOp.MAX)[0])

    def anywhere(self, flag: bool) -> bool:
        """Whether it is true on at least one rank."""
        return bool(self.total([float(flag)])[0] > 0)

    def together(self, make: Callable[[], T]) -> T:
        """Its result on all ranks, or an exception on all of them."""
        error: Exception | None = None
        try:
            return_value = make()
        except FailedElsewhere:
            raise  # raised on all ranks
        except Exception as e:  # noqa: BLE001 - the user's own code; raised again on all ranks
            error = e
        self.fail_together(error)
        return return_value

    def fail_together(self, error: Exception | None) -> None:
        """Raises on all ranks if one failed, so that none waits for another."""
        if self.num == 1:
            if error is not None:
                raise error
            return
        failed = [int(flag) for flag in self.each([float(error is not None)])[:, 0]]
        if any(failed):
            (text,) = self.texts_from([one_line(error) if error is not None else ""], [failed.index(1)])
            if error is not None:
                raise error
            raise FailedElsewhere(f"on rank {failed.index(1)}: {text}")

    def texts_from(self, texts: Sequence[str], by: Sequence[int]) -> list[str]:
        """Each text as the rank that is named for it has it."""
        rows = torch.zeros(len(texts), MAX_TEXT, dtype=torch.float64)
        for row, text, rank in zip(rows, texts, by, strict=True):
            if rank == self.rank:
                raw = torch.tensor(list(text.encode()[:MAX_TEXT]), dtype=torch.float64)
                row[: len(raw)] = raw
        found = self.total(rows).to(torch.uint8)
        return [bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore") for row in found]

    def each(self, values: Sequence[float]) -> torch.Tensor:
        """ranks x values: what every rank gave."""
        grid = torch.zeros(self.num, len(values), dtype=torch.float64)
        grid[self.rank] = torch.as_tensor(values, dtype=torch.float64)
        return self.total(grid)

    def average_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Of a replicated model, as DDP does it; a sharded one's are averaged by its own backward."""
        if self.num == 1 or not self._is_replicated:
            return
        trained = [p for p in parameters if p.requires_grad]
        used = self.total([float(p.grad is not None) for p in trained]) > 0
        for parameter, is_used in zip(trained, used.tolist(), strict=True):
            if is_used:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad, group=self._group)
                parameter.grad.div_(self.num)


def one_line(error: Exception) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())[:200]
    return text if isinstance(error, FailedElsewhere) else f"{type(error).__name__}: {text}"
