"""After a commit: one collective in which all ranks learn whether all of them succeeded.

Design
------
Every rank is at the same boundary and has acted, or failed to. Each contributes whether it did, the command's number
and, if it has one, a fingerprint of the replicated parameters. One MAX over a small int64 tensor finds a failure and
any difference (the largest of x and of -x are opposite only if all x are equal). A rank that failed takes part like
the others, so none is left waiting.
"""

import torch
import torch.distributed as dist

FINGERPRINT_MASK = 2**62 - 1


def agree(number: int, *, is_done: bool, fingerprint: int | None) -> str:
    """The problem on some rank, or nothing. A collective: called by all ranks of the default group."""
    has_one = fingerprint is not None
    mark = (fingerprint or 0) & FINGERPRINT_MASK
    mine = [-int(is_done), number, -number, -int(has_one), mark, -mark]
    words = torch.tensor(mine, dtype=torch.int64, device=collective_device())
    dist.all_reduce(words, op=dist.ReduceOp.MAX)
    failed, highest, lowest, missing, largest, smallest = words.tolist()
    if highest != -lowest:
        return f"the ranks acted on different commands, {-lowest} and {highest}"
    if failed == 0:
        return "another rank could not carry it out" if is_done else "this rank could not carry it out"
    if missing == -1 and largest != -smallest:
        return "the parameters differ between the ranks"
    return ""


def collective_device() -> torch.device:
    """The device for a collective on the default group."""
    devices = [part.partition(":")[0] for part in str(dist.get_backend_config()).split(",")]
    return torch.device("cpu" if "cpu" in devices else devices[0])
