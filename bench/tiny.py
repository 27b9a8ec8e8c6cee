"""What the agent costs on steps of about 2 ms, timed directly: in place and in the background, in microseconds a step.

Design
------
A share of 1 % of such a step is below what the comparison of two twins can show in a minute, so the agent is timed
where it works: on the training thread by its guard, in the background as the CPU time of all other threads of the
process (the sender is the only one that works). The guard is given the thread's CPU clock here, since on a shared
machine the wall clock would charge the agent for other processes; reading that clock is a system call, which is part of
the result and about 1 us a call.

The governor is not held: it gets `SETTLE_SECONDS` of steps, as in any run, and what follows is measured in blocks. A
block has as many steps as there are between two samples at the cadences that it came to, so that samples are in it in
their due proportion.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

from models import Calls, build
from peers import OwnSeconds

import caboose
import caboose.guard

SETTLE_SECONDS = 4.0
MIN_BLOCK = 1000
GOAL_MICROSECONDS = 20.0


@dataclass(frozen=True)
class Measured:
    """Microseconds per step, medians over the blocks."""

    bare: float
    in_place: float
    background: float
    sample_every: int
    norm_every: int
    phase_every: int
    num_steps: int

    @property
    def is_met(self) -> bool:
        return self.in_place + self.background <= GOAL_MICROSECONDS


def measure(endpoint: str, *, num_blocks: int, progress: Callable[[str], None]) -> Measured:
    """Runs the model bare and watched, in turns."""
    workload = build("tiny")
    stream = workload.stream()

    def run(steps: int, calls: Calls) -> tuple[float, float]:
        """CPU seconds per step: of this thread, and of the others."""
        thread, process = time.thread_time(), time.process_time()
        for _ in range(steps):
            workload.step(next(stream), calls)
        thread = time.thread_time() - thread
        return thread / steps, (time.process_time() - process - thread) / steps

    progress("tiny: warming up")
    run(200, Calls())
    bare = [run(MIN_BLOCK // 4, Calls())[0] for _ in range(4)]
    real = caboose.guard.time
    caboose.guard.time = SimpleNamespace(perf_counter=time.thread_time)  # type: ignore[assignment]  # all it uses
    try:
        monitor = caboose.attach(workload.model, workload.optimizer, job="tiny", endpoint=endpoint)
        own, calls = OwnSeconds(monitor), Calls(after_step=monitor.step)
        progress("tiny: letting the agent's governor settle")
        end = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < end:
            run(50, calls)
        governor = monitor._governor
        places, backgrounds, num_steps = [], [], 0
        for number in range(num_blocks):
            progress(f"tiny: block {number + 1} of {num_blocks}")
            steps = max(MIN_BLOCK, governor.sample_every)
            before = own()
            backgrounds.append(run(steps, calls)[1])
            places.append((own() - before) / steps)
            num_steps += steps
        monitor.close()
    finally:
        caboose.guard.time = real
    return Measured(
        bare=1e6 * statistics.median(bare),
        in_place=1e6 * statistics.median(places),
        background=1e6 * statistics.median(backgrounds),
        sample_every=governor.sample_every,
        norm_every=governor.norm_every,
        phase_every=governor.phase_every,
        num_steps=num_steps,
    )


def section(found: Measured) -> str:
    """The table, and the verdict."""
    total = found.in_place + found.background
    return "\n".join(
        [
            "## tiny, timed directly",
            "",
            f"0.07 M parameters in 6 tensors, AdamW: as large as the network of a small DQN. A bare step takes "
            f"{found.bare / 1e3:.2f} ms of CPU. The governor is at work as in any run.",
            "",
            "| in place, us per step | in the background, us per step | together | sample_every | norm_every | "
            "phase_every | steps |",
            "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
            f"| {found.in_place:.1f} | {found.background:.1f} | {total:.1f} | {found.sample_every} | "
            f"{found.norm_every} | {found.phase_every} | {found.num_steps} |",
            "",
            f"Verdict (tiny, defaults): {'met' if found.is_met else 'missed'}. In place and in the background "
            f"{total:.1f} us <= {GOAL_MICROSECONDS:.0f} us a step; {total / found.bare:.2%} of a bare step.",
        ]
    )
