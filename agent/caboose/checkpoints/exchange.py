"""Communication of the ranks about checkpoints: small JSON values over their own gloo group.

Design
------
Never an object collective: those pickle. A length each, then bytes padded to the longest. `agree` makes a step of the
work succeed on all ranks or on none: each rank does its part and shares whether it could, and all raise if one could
not, so that none is left waiting in the next collective. Without a process group there is one rank.
"""

import json
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from caboose.checkpoints.errors import CheckpointFailed, CheckpointRefused


class Exchange:
    """Communicates with the other ranks; with `dist` initialised, making one is a collective."""

    def __init__(self, timeout_seconds: float) -> None:
        self.group: dist.ProcessGroup | None = None
        self.rank, self.world = 0, 1
        if dist.is_available() and dist.is_initialized():
            self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        else:
            # torch warns on each save, from any thread; a temporary filter would not be safe there.
            warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable", UserWarning)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order."""
        if self.group is None:
            return [value]
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([content.numel()]), group=self.group)
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: content.numel()] = content
        rows = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world)]
        dist.all_gather(rows, padded, group=self.group)
        return [json.loads(row[: int(size)].numpy().tobytes()) for row, size in zip(rows, sizes, strict=True)]

    def agree(self, what: str, work: Callable[[], Any]) -> list[Any]:
        """Does this rank's part and returns the results of all; all ranks raise if one of them could not."""
        answer: dict[str, Any]
        try:
            answer = {"value": work()}
        except CheckpointRefused as error:
            answer = {"refused": [str(error.path), error.reason]}
        except Exception as error:  # noqa: BLE001 - raised on all ranks
            text = str(error) if isinstance(error, CheckpointFailed) else f"{type(error).__name__}: {error}"
            answer = {"error": text}
        answers = self.gather(answer)
        for rank, other in enumerate(answers):
            if "refused" in other:
                raise CheckpointRefused(*other["refused"])
            if "error" in other:
                raise CheckpointFailed(f"{what} failed on rank {rank}: {other['error']}")
        return [other["value"] for other in answers]

    def close(self) -> None:
        """Closes the group."""
        group, self.group = self.group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)
