"""Memory is nearly used up: the host swaps, or the device's allocator frees and asks again, and steps wait for it."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from caboose_daemon.diagnosis.case import Case, Floats
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

FULL, ROOMY = 0.9, 0.6
"""Shares of all there is at which memory is scarce, and at which there is room."""
GREW, STEADY = 1.2, 1.03
"""Times what was used at first."""
MUCH = 1.5
"""Times its peers' memory."""
UNEVEN = 2.0
"""Times as uneven as before: what waits for memory is slow on some steps and not on others."""
GIB = 2.0**30
Kind = Literal["host", "device"]
KINDS: tuple[Kind, ...] = ("host", "device")


class MemoryPressure(Cause):
    """Steps that wait for memory."""

    id = "memory_pressure"
    title = "memory is nearly used up"
    explains = frozenset({"throughput_regression", "data_starved", "straggler", "job_stalled"})
    rarity = 0.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """What is used of what there is, whether it grew, and whether one rank uses more; without a number, little."""
        known = [(kind, used) for kind in KINDS if (used := case.memory(kind))]
        for kind, used in known:
            yield from self._weigh_use(case, kind, used)
        if known:
            yield from self._weigh_peers(case)
        before, since = case.before("step_seconds"), case.since("step_seconds")
        if len(before) >= 20 and len(since) >= 20:
            was, now = _unevenness(before), _unevenness(since)
            if now > UNEVEN * was:
                yield supports(
                    SLIGHT, f"steps have become uneven: slow ones take {now:.2g} times the usual, not {was:.2g}"
                )

    def _weigh_use(self, case: Case, kind: Kind, used: list[tuple[int, float]]) -> Iterator[Evidence]:
        first, last = used[0][1], used[-1][1]
        share = case.memory_share(kind)
        if share is not None and share > FULL:
            yield supports(STRONG, f"{share:.0%} of the {kind}'s memory is used ({last / GIB:.3g} GiB a rank)")
        elif share is not None and share < ROOMY:
            yield opposes(STRONG, f"{share:.0%} of the {kind}'s memory is used: there is room")
        if len(used) < 3:
            return
        if last > GREW * first:
            weight = FAIR if share is None or share > ROOMY else SLIGHT
            text = f"a rank's {kind} memory grew from {first / GIB:.3g} to {last / GIB:.3g} GiB since step {used[0][0]}"
            yield supports(weight, text)
        elif last < STEADY * first and (share is None or share < FULL):
            yield opposes(FAIR, f"a rank's {kind} memory has stood at {last / GIB:.3g} GiB since step {used[0][0]}")

    def _weigh_peers(self, case: Case) -> Iterator[Evidence]:
        finding = case.finding("straggler")
        if finding is None or len(finding.ranks) != 1 or case.sampled is None:
            return
        used = {rank: report.host_bytes for rank, report in case.sampled.reports.items() if report.host_bytes}
        own = used.pop(finding.ranks[0], None)
        if own is None or not used:
            return
        usual = sorted(used.values())[len(used) // 2]
        if own > MUCH * usual:
            text = f"{case.who('straggler')} uses {own / GIB:.3g} GiB of host memory, its peers {usual / GIB:.3g} GiB"
            yield supports(FAIR, text)

    def advise(self, case: Case) -> Advice:
        """Make room where it is scarce; where that is not known, look first."""
        shares = {kind: case.memory_share(kind) or 0.0 for kind in KINDS}
        if shares["device"] > FULL:
            return Advice(
                first_fix="make room on the device: a smaller batch with accumulation, or activation checkpointing",
                code="model.gradient_checkpointing_enable()  # or torch.utils.checkpoint.checkpoint(block, x)",
                avoid="do not call torch.cuda.empty_cache() at every step: that is the waiting itself",
                verify="torch.cuda.memory_stats()['num_alloc_retries'] stands still; a step takes as long as before",
            )
        workers = case.setting("num_workers")
        code = f"DataLoader(..., num_workers={max(1, int(workers) // 2)}, prefetch_factor=2)" if workers else "free -m"
        return Advice(
            first_fix="see whether the host swaps, find what grows (caches, lists, what every loader worker copies),"
            " and make it smaller",
            code=f"{code}  # vmstat 1: si and so must be 0",
            avoid="do not add loader workers: each takes memory of its own",
            verify="vmstat shows no swapping, memory stands still, and a step takes as long as before",
        )


def _unevenness(seconds: Floats) -> float:
    """A slow step (the 95th of a hundred) over a usual one."""
    usual = float(np.median(seconds))
    return float(np.quantile(seconds, 0.95)) / usual if usual > 0 else 1.0
