"""What the agent costs on steps of about 2 ms, timed directly: in place and in the background, in microseconds a step.

Design
------
A share of 1 % of such a step is below what the comparison of two twins can show in a minute, so the agent is timed
where it works. *In place*: around everything of a step that it takes part in, which is the call of the model and its
backward, less the forward and the engine inside them, its hooks on the optimizer, and the step boundary (`Probes`).
What is left of these in a bare twin, which takes turns with the watched one block by block, is subtracted; where
`backward` is torch's own function, the agent has no part in it. A step is thin, or has phases, norms or a sample; of
each kind the lower quartile counts, by the wall clock, so what other processes take of a shared machine does not. Each
kind weighs as much as it has steps at the cadences that the governor comes to where a step takes `STEP_SECONDS` of wall
time; on a busy machine it takes longer, and there would be more of the rare kinds. Their costs are from the governor's
search too.

*In the background*: the CPU time of all other threads of the process, in which the sender and ZeroMQ are the only ones
that work. It is a matter of time, not of steps, so it is taken per second of the run, and counted for a step of
`STEP_SECONDS`.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from models import Calls, Workload, build

import caboose
from caboose.governor import AIM, Governor

SETTLE_SECONDS = 5.0
BLOCK_SECONDS = 3.0
STEP_SECONDS = 2e-3
GOAL_MICROSECONDS = 20.0
KINDS = ("thin", "phases", "norms", "sampled")
BACKWARD = torch.autograd.backward
"""torch's own, on which nothing of the agent is called."""
PARTS = ("the model's call", "backward", "the optimizer's hooks", "boundary")


Block = tuple[int, float, float, float]


@dataclass(frozen=True)
class Measured:
    """Seconds; those of the parts and kinds are lower quartiles."""

    bare: float
    wall: float
    parts: dict[str, float]
    """Of a thin step, in place."""
    kinds: dict[str, float]
    """In place, by kind of step."""
    shares: dict[str, float]
    """Of all steps, by kind."""
    background: float
    """CPU seconds per second."""
    cadences: tuple[int, int, int]
    num_steps: int
    step_seconds: float = STEP_SECONDS

    @property
    def in_place(self) -> float:
        """Per step; a kind that did not occur counts as the next one that has more."""
        costs = [next(self.kinds[k] for k in KINDS[n:] if k in self.kinds) for n in range(len(KINDS))]
        return sum(cost * share for cost, share in zip(costs, self.shares.values(), strict=True))

    @property
    def total(self) -> float:
        """Per step, with the background."""
        return self.in_place + self.background * self.step_seconds

    @property
    def is_met(self) -> bool:
        return 1e6 * self.total <= GOAL_MICROSECONDS


@dataclass
class Probes:
    """Times the parts of a step around the agent's share in them."""

    inside: float = 0.0
    """Seconds in the model's own work, in the part that is being timed."""
    steps: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    """Of each step the seconds in its parts, by kind."""

    wrapped: set[str] = field(default_factory=set)
    """Kinds of steps in which the agent has replaced `backward`."""

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; its time is not the agent's."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.inside += time.perf_counter() - began

        return timed

    @contextmanager
    def placed(self, *workloads: Workload) -> Iterator[None]:
        """Around the work inside the parts."""
        engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
        torch.autograd._engine_run_backward = self.within(engine)  # type: ignore[attr-defined]
        for workload in workloads:
            workload.model.forward = self.within(workload.model.forward)  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.autograd._engine_run_backward = engine  # type: ignore[attr-defined]

    def around_hooks(self, workload: Workload) -> None:
        """Around the agent's hooks on the optimizer."""
        optimizer = workload.optimizer
        for hooks in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks):
            for key, hook in hooks.items():
                hooks[key] = self.within(hook)

    def step(self, workload: Workload, batch: Any, calls: Calls, kind: str) -> None:
        """A step as of `Workload.step`."""
        clock, (inputs, targets) = time.perf_counter, batch
        self.inside, began = 0.0, clock()
        outputs = workload.model(inputs)
        call = clock() - began - self.inside
        loss = workload.loss(outputs, targets)
        if torch.autograd.backward is not BACKWARD:
            self.wrapped.add(kind)
        self.inside, began = 0.0, clock()
        loss.backward()
        backward = clock() - began - self.inside
        self.inside = 0.0
        workload.optimizer.step()
        optimizer = self.inside
        workload.optimizer.zero_grad()
        began = clock()
        calls.after_step(loss)
        self.steps.setdefault(kind, []).append((call, backward, optimizer, clock() - began))

    def added(self, kind: str) -> dict[str, float]:
        """Seconds that the parts take beyond those of a bare step."""
        pairs = zip(PARTS, self.quartiles(kind), self.quartiles("bare"), strict=True)
        return {part: 0.0 if part == "backward" and kind not in self.wrapped else a - b for part, a, b in pairs}

    def quartiles(self, kind: str) -> tuple[float, ...]:
        """The lower ones, of the parts."""
        return tuple(sorted(values)[len(values) // 4] for values in zip(*self.steps[kind], strict=True))


def measure(
    endpoint: str,
    *,
    num_blocks: int,
    progress: Callable[[str], None],
    name: str = "tiny",
    step_seconds: float = STEP_SECONDS,
) -> Measured:
    """Runs a bare and a watched twin of the model in turns; what it costs where a step takes so long."""
    (workload, other), probes = (_of_own_class(build(name)), _of_own_class(build(name))), Probes()

    def run(
        seconds: float, workload: Workload, calls: Calls, kind: Callable[[], str]
    ) -> tuple[int, float, float, float]:
        """Steps, seconds of the wall clock, CPU seconds of this thread and of the others."""
        process, thread, began, num = time.process_time(), time.thread_time(), time.perf_counter(), 0
        stream = workload.stream()
        while time.perf_counter() - began < seconds:
            for _ in range(20):
                probes.step(workload, next(stream), calls, kind())
            num += 20
        thread = time.thread_time() - thread
        return num, time.perf_counter() - began, thread, time.process_time() - process - thread

    with probes.placed(workload, other):
        progress(f"{name}: warming up")
        run(1.0, other, Calls(), lambda: "warm")
        monitor = caboose.attach(workload.model, workload.optimizer, job=name, endpoint=endpoint)
        probes.around_hooks(workload)
        calls = Calls(after_step=monitor.step)
        progress(f"{name}: letting the agent's governor settle")
        run(SETTLE_SECONDS, workload, calls, lambda: _kind(monitor))
        probes.steps.pop("thin", None)  # those of its search
        bare, blocks = [], []
        for number in range(num_blocks):
            progress(f"{name}: block {number + 1} of {num_blocks}")
            bare.append(run(BLOCK_SECONDS / 3, other, Calls(), lambda: "bare"))
            run(BLOCK_SECONDS / 6, workload, calls, lambda: "again")  # after the pause
            blocks.append(run(BLOCK_SECONDS, workload, calls, lambda: _kind(monitor)))
        background = statistics.median(background / wall for _, wall, _, background in blocks)
        cadences = _cadences(monitor._governor, step_seconds, background)
        monitor.close()
    added = {kind: probes.added(kind) for kind in KINDS if kind in probes.steps}
    num_steps = sum(num for num, _, _, _ in blocks)
    return Measured(
        bare=sum(cpu for _, _, cpu, _ in bare) / sum(num for num, _, _, _ in bare),
        wall=sum(wall for _, wall, _, _ in blocks) / num_steps,
        parts=added.get("thin", {}),
        kinds={kind: sum(parts.values()) for kind, parts in added.items()},
        shares=_shares(*cadences),
        background=background,
        cadences=cadences,
        num_steps=num_steps,
        step_seconds=step_seconds,
    )


def _cadences(governor: Governor, step_seconds: float, background: float) -> tuple[int, int, int]:
    """What the governor makes of the costs that it found, where steps take so long."""
    governor._usual, governor._mean_background = step_seconds, background * step_seconds
    governor._now = governor._coarser(governor._now, AIM * governor._limit)
    governor._place()
    return governor.sample_every, governor.norm_every, governor.phase_every


def _of_own_class(workload: Workload) -> Workload:
    """Of a class that no other model has: the agent replaces the call of a class."""
    kind = type(workload.model)
    workload.model.__class__ = type(f"Own{kind.__name__}", (kind,), {})
    return workload


def _kind(monitor: caboose.Monitor) -> str:
    """What the step that begins now measures."""
    observer = monitor._observer
    if observer is None or observer.is_thin:
        return "thin"
    return "sampled" if observer.is_sampled else "norms" if observer._takes_norms else "phases"


def _shares(sample_every: int, norm_every: int, phase_every: int) -> dict[str, float]:
    """Of the steps, by kind; each cadence divides the next."""
    up_to = [1.0, 1 / phase_every, 1 / norm_every, 1 / sample_every, 0.0]
    up_to[2] = max(up_to[2], up_to[3])
    up_to[1] = max(up_to[1], up_to[2])
    return {kind: more - less for kind, (more, less) in zip(KINDS, itertools.pairwise(up_to), strict=True)}


def section(found: Measured) -> str:
    """The tables, and the verdict."""
    background = found.background * STEP_SECONDS
    times = [f"{1e6 * seconds:.1f}" for seconds in (found.in_place, background, found.total)]
    sample_every, norm_every, phase_every = found.cadences
    kinds = [k for k in KINDS if k in found.kinds]
    return "\n".join(
        [
            "## tiny, timed directly",
            "",
            f"0.07 M parameters in 6 tensors, AdamW: as large as the network of a small DQN. A bare step takes "
            f"{1e3 * found.bare:.2f} ms of CPU; watched, on this machine as busy as it was, {1e3 * found.wall:.2f} ms "
            f"of wall time. With steps of 2 ms the governor comes to samples on every {sample_every}th step, norms on "
            f"every {norm_every}th, phases on every {phase_every}th. {found.num_steps} steps.",
            "",
            "| in place, us per step | in the background, us per 2 ms | together | in the background, ms per s |",
            "| ---: | ---: | ---: | ---: |",
            f"| {times[0]} | {times[1]} | {times[2]} | {1e3 * found.background:.2f} |",
            "",
            "| in place, us, lower quartile | " + " | ".join(kinds) + " |",
            "| --- |" + " ---: |" * len(kinds),
            "| a step | " + " | ".join(f"{1e6 * found.kinds[k]:.1f}" for k in kinds) + " |",
            "| its share of all steps | " + " | ".join(f"{found.shares[k]:.2%}" for k in kinds) + " |",
            "",
            "Of a thin step: "
            + ", ".join(f"{part} {1e6 * seconds:.1f} us" for part, seconds in found.parts.items())
            + ".",
            "",
            f"Verdict (tiny, defaults): {'met' if found.is_met else 'missed'}. In place and in the background "
            f"{times[2]} us <= {GOAL_MICROSECONDS:.0f} us a step of 2 ms.",
        ]
    )
