"""How much memory there is at most: of the host (or the container's share of it) and of the device.

Told once, in Hello; what of it is used travels with every closer look. Whatever cannot be read is left out.
"""

import os
from pathlib import Path

import torch

from caboose_wire.fields import Scalar

CGROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where a container's limit stands, in the second and the first version of control groups."""


def limits(device: str | None) -> dict[str, Scalar]:
    """`host_memory_bytes`, `device_memory_bytes`, and how many ranks share a host."""
    facts: dict[str, Scalar] = {}
    host = [size for size in (_physical(), *(_limit(path) for path in CGROUP)) if size]
    if host:
        facts["host_memory_bytes"] = min(host)
    if device == "cuda" and torch.cuda.is_available():
        facts["device_memory_bytes"] = int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    if ranks.isdecimal() and int(ranks):
        facts["ranks_per_host"] = int(ranks)
    return facts


def _physical() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def _limit(path: Path) -> int:
    """A container's limit; 0 where there is none ("max"), or no container."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0
