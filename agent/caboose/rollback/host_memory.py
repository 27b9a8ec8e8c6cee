"""The host memory that snapshots take, and its limit."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from caboose.tensors.placement import own

DEFAULT_SHARE = 0.25
"""Share of the available memory at attach, for the snapshots of all ranks on this host."""
GB = 1e9
UNKNOWN_STATES = 2.0
"""Assumed for an unknown optimizer, as for Adam."""

_STATES: dict[str, float] = {
    "Adadelta": 2,
    "Adafactor": 0.1,
    "Adagrad": 1,
    "Adam": 2,
    "AdamW": 2,
    "Adamax": 2,
    "ASGD": 1,
    "Muon": 1,
    "NAdam": 2,
    "RAdam": 2,
    "RMSprop": 1,
    "Rprop": 2,
    "SGD": 0,
    "SparseAdam": 2,
}
"""Tensors of a parameter's size that an optimizer keeps; `_num_states` adds those of its settings."""


def estimate(num_parameter_bytes: int, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Bytes of parameters and optimizer states in a snapshot, before those states exist."""
    total = float(num_parameter_bytes)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            total += _num_states(optimizer, group) * sum(own(p).nbytes for p in group["params"] if p.requires_grad)
    return int(total)


def _num_states(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> float:
    name = type(optimizer).__name__
    if name == "LBFGS":
        return 2 * float(group.get("history_size", 100)) + 3
    number = _STATES.get(name, UNKNOWN_STATES)
    if name in ("SGD", "RMSprop"):
        number += bool(group.get("momentum")) + bool(group.get("centered"))
    return number + bool(group.get("amsgrad"))


def limit_bytes(max_host_gb: float | None) -> int:
    """The limit for all snapshots on this host together."""
    if max_host_gb is None:
        return int(available_bytes() * DEFAULT_SHARE)
    return int(max_host_gb * GB)


def excess(num_bytes: int, num_slots: int, num_local_ranks: int, limit: int, num_extra: int = 0) -> str:
    """The arithmetic and the ways out if snapshots of this size exceed the limit; else nothing.

    `num_extra` of the bytes belong to extras, which are named if there are any.
    """
    total = num_bytes * num_slots * num_local_ranks
    if total <= limit:
        return ""
    of_which = f" ({num_extra / GB:.3g} GB of it extra)" if num_extra else ""
    return (
        f"{num_bytes / GB:.3g} GB a snapshot{of_which} x {num_slots} slots x {num_local_ranks} ranks on this host = "
        f"{total / GB:.3g} GB of host memory, above the limit of {limit / GB:.3g} GB: in caboose.Snapshots, "
        "keep fewer (keep), raise the limit (max_host_gb), or, under DDP, divide them among the ranks (dedupe=True)"
    )


def available_bytes() -> int:
    """Memory available on this host, or in this container if that is less."""
    host = _meminfo("MemAvailable") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    return min(host, max(most - used, 0)) if most is not None and used is not None else host


def _meminfo(name: str) -> int | None:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _number(path: str) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None  # "max" is no limit


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""
