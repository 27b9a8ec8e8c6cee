"""How ranks end together: who lost a peer, whether all of them were cancelled, and how a rank is named."""

import re
from collections.abc import Collection
from typing import Protocol

LOST_PEER = re.compile(
    r"(closed|reset|aborted) by peer|remote process exited|remote worker|ncclRemoteError|broken pipe"
    r"|collective operation timeout|timed out waiting|connection refused",
    re.IGNORECASE,
)
"""Errors of gloo, NCCL and the store about another process that is gone."""


class Ended(Protocol):
    """What is needed of a rank here."""

    @property
    def state(self) -> str:
        """Whether it left, failed or was terminated."""

    @property
    def error(self) -> str:
        """Of its Bye."""

    @property
    def last_seen(self) -> float:
        """When its last message arrived; that is its Bye, if it sent one."""


def lost_a_peer(rank: Ended) -> bool:
    """Whether it failed because another process was gone."""
    return rank.state == "failed" and LOST_PEER.search(rank.error) is not None


def were_cancelled(ranks: Collection[Ended]) -> bool:
    """Whether a signal terminated every rank, or all but those that lost a peer by that.

    A signal reaches the hosts of a job one after the other.
    """
    terminated = [rank.last_seen for rank in ranks if rank.state == "terminated"]
    others = [rank for rank in ranks if rank.state != "terminated"]
    return bool(terminated) and all(lost_a_peer(rank) and rank.last_seen >= min(terminated) for rank in others)


def rank_place(rank: int, host: str, pid: int) -> str:
    """A rank for people who have to find its process: `rank 1 (node3, pid 4711)`."""
    where = ", ".join(part for part in (host, f"pid {pid}" if pid else "") if part)
    return f"rank {rank} ({where})" if where else f"rank {rank}"
