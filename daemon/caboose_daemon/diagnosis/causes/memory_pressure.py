"""Memory is nearly full: the host swaps, or the device's allocator retries, and steps wait for it."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from caboose_daemon.diagnosis.case import Case, Floats
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

FULL, ROOMY = 0.9, 0.6
"""Shares of the total at which memory is scarce, and at which there is room."""
GREW, STEADY = 1.2, 1.03
"""Ratios to the memory used at first."""
MUCH = 1.5
"""Ratio to the peers' memory."""
UNEVEN = 2.0
"""Ratio to the earlier unevenness: waiting for memory makes some steps slow and others not."""
GIB = 2.0**30
Kind = Literal["host", "device"]
KINDS: tuple[Kind, ...] = ("host", "device")


class MemoryPressure(Cause):
    """Steps that wait for memory."""

    id = "memory_pressure"
    title = "memory nearly full"
    explains = frozenset({"throughput_regression", "data_starved", "straggler", "job_stalled"})
    rarity = 0.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        known = [(kind, used) for kind in KINDS if (used := case.memory(kind))]
        for kind, used in known:
            yield from self._weigh_use(case, kind, used)
        if known:
            yield from self._weigh_peers(case)
        before, since = case.before("step_seconds"), case.since("step_seconds")
        if len(before) >= 20 and len(since) >= 20:
            was, now = _unevenness(before), _unevenness(since)
            if now > UNEVEN * was:
                yield supports(SLIGHT, f"steps became uneven: slow ones take {now:.2g}x the median, {was:.2g}x before")

    def _weigh_use(self, case: Case, kind: Kind, used: list[tuple[int, float]]) -> Iterator[Evidence]:
        first, last = used[0][1], used[-1][1]
        share = case.memory_share(kind)
        if share is not None and share > FULL:
            yield supports(STRONG, f"{100 * share:.0f} % of {kind} memory used ({last / GIB:.3g} GiB per rank)")
        elif share is not None and share < ROOMY:
            yield opposes(STRONG, f"only {100 * share:.0f} % of {kind} memory used")
        if len(used) < 3:
            return
        if last > GREW * first:
            weight = FAIR if share is None or share > ROOMY else SLIGHT
            text = (
                f"{kind} memory grew from {first / GIB:.3g} to {last / GIB:.3g} GiB per rank since step {used[0][0]:,}"
            )
            yield supports(weight, text)
        elif last < STEADY * first and (share is None or share < FULL):
            yield opposes(FAIR, f"{kind} memory constant at {last / GIB:.3g} GiB per rank since step {used[0][0]:,}")

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
        shares = {kind: case.memory_share(kind) or 0.0 for kind in KINDS}
        if shares["device"] > FULL:
            return Advice(
                first_fix="use a smaller batch with accumulation, or activation checkpointing",
                code="x = torch.utils.checkpoint.checkpoint(layer, inputs, use_reentrant=False)",
                avoid="do not call torch.cuda.empty_cache() at every step: it makes every step wait",
                verify="torch.cuda.memory_stats()['num_alloc_retries'] stays constant; the step time is back to normal",
            )
        workers = case.setting("num_workers")
        code = (
            f"loader = DataLoader(dataset, num_workers={max(1, int(workers) // 2)}, prefetch_factor=2)"
            if workers
            else "free -m"
        )
        return Advice(
            first_fix="check whether the host swaps, and reduce what grows (caches, lists, copies in loader workers)",
            code=f"{code}  # vmstat 1: si and so must be 0",
            avoid="do not add loader workers: each one needs more memory",
            verify="vmstat shows no swapping, memory is constant, and the step time is back to normal",
        )


def _unevenness(seconds: Floats) -> float:
    """The 95th percentile of the step time over its median."""
    usual = float(np.median(seconds))
    return float(np.quantile(seconds, 0.95)) / usual if usual > 0 else 1.0
