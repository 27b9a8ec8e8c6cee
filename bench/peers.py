"""The compared variants: Caboose, and common ways to monitor gradients, as usually written.

Design
------
A variant is opened around one block: `open` yields the calls that the loop makes and takes out everything again at
its end, so nothing of it is left in the next block. Opening and closing are never timed. A variant whose work is in
the loop's own calls is also timed in place (`own_seconds`), and so is Caboose, by its guard: this shows small costs
below the noise of two compared blocks. wandb's hooks cannot be timed this way.

All code of the variants is in this file or in the directories of `OWNERS`; that is how `counting` assigns memory.
"""

import contextlib
import importlib.util
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from models import Calls, Workload

import caboose
import caboose_drills
from caboose.governor import Governor
from caboose.settings.environment import SAMPLE_EVERY

OWNERS = (__file__, str(Path(caboose.__file__).parent) + os.sep, f"{os.sep}wandb{os.sep}")
DRILLS = str(Path(caboose_drills.__file__).parent) + os.sep  # the transformer is from there, and is not counted
SETTLE_SECONDS = 0.3
"""Connecting and the agent's Hello happen in here, before a block begins: its sender runs every 50 ms."""

NO_GOVERNOR = 1.0
"""A budget of the whole step: the agent keeps its interval, so its cost is measured and not avoided."""

Open = Callable[[Workload], AbstractContextManager[Calls]]


@dataclass(frozen=True)
class Variant:
    """One row of the table."""

    key: str
    name: str
    open: Open
    period: int = 1
    """Steps after which its work repeats; a block is a whole number of periods."""
    every_round: bool = False
    """Compared in every round; the others, whose cost is obvious, in every third."""
    has_background: bool = False
    """Whether threads or other processes work for it."""


class OwnSeconds:
    """Sums the time on the training thread that the agent's guard reports, step by step."""

    def __init__(self, monitor: caboose.Monitor) -> None:
        self._guard = monitor.guard
        self._taken = 0.0
        self._take = self._guard.take_seconds
        self._guard.take_seconds = self._summing  # the only way to catch every reading, each of which resets it

    def _summing(self) -> float:
        seconds = self._take()
        self._taken += seconds
        return seconds

    def __call__(self) -> float:
        """Seconds so far, including the part not yet read."""
        return self._taken + self._guard.seconds


_number = itertools.count()
SETTLE_PERIODS = 5


_settled: dict[str, Governor] = {}
"""By workload: the intervals chosen by the agent's governor, learned once and then fixed while blocks are compared."""


def settled_governor(endpoint: str, workload: Workload) -> Governor:
    """Runs the agent at its defaults until its governor has settled on its intervals."""
    if workload.name not in _settled:
        monitor = caboose.attach(workload.model, workload.optimizer, job=f"{workload.name}-settling", endpoint=endpoint)
        stream = workload.stream()
        calls = Calls(after_step=monitor.step)
        for _ in range(SETTLE_PERIODS * SAMPLE_EVERY):
            workload.step(next(stream), calls)
        _settled[workload.name] = monitor._governor
        monitor.close()
        workload.restore()
    return _settled[workload.name]


@contextlib.contextmanager
def watched(
    endpoint: str, daemon: int, sample_every: int | None, is_settled: bool, workload: Workload
) -> Iterator[Calls]:
    """Caboose as a user attaches it, its sender reporting to a daemon in another process."""
    governor = settled_governor(endpoint, workload) if is_settled else None
    monitor = caboose.attach(
        workload.model,
        workload.optimizer,
        job=f"{workload.name}-{next(_number)}",
        endpoint=endpoint,
        sampling=caboose.Sampling(sample_every, overhead_budget=NO_GOVERNOR),
    )
    if governor is not None:
        monitor._governor.adopt(governor)
    try:
        time.sleep(SETTLE_SECONDS)
        yield Calls(after_step=monitor.step, watch=monitor.watch, own_seconds=OwnSeconds(monitor), elsewhere=[daemon])
        if not monitor.is_active:
            raise RuntimeError("the agent switched itself off during the block; its cost is not what was measured")
    finally:
        monitor.close()


@contextlib.contextmanager
def bare(_workload: Workload) -> Iterator[Calls]:
    """No monitoring."""
    yield Calls()


def _timed(work: Callable[..., None]) -> tuple[Callable[..., None], Callable[[], float]]:
    spent = [0.0]

    def run(*arguments: Any) -> None:
        start = time.thread_time()  # CPU time: on a busy machine the wall clock would include other processes
        work(*arguments)
        spent[0] += time.thread_time() - start

    return run, lambda: spent[0]


def _gradients(workload: Workload) -> list[torch.Tensor]:
    return [p.grad for p in workload.model.parameters() if p.grad is not None]


@contextlib.contextmanager
def total_norm(workload: Workload) -> Iterator[Calls]:
    """The floor: one norm over all gradients, not per layer, with its result left on the device."""

    def work() -> None:
        torch.nn.utils.get_total_norm(_gradients(workload))

    run, seconds = _timed(work)
    yield Calls(after_backward=run, own_seconds=seconds)


@contextlib.contextmanager
def norm_items(workload: Workload) -> Iterator[Calls]:
    """The loop many people write: each parameter's gradient norm, read at once."""

    def work() -> None:
        for gradient in _gradients(workload):
            gradient.norm().item()

    run, seconds = _timed(work)
    yield Calls(after_backward=run, own_seconds=seconds)


@contextlib.contextmanager
def statistics_items(workload: Workload) -> Iterator[Calls]:
    """Mean, standard deviation, norm, maximum, minimum and zeros of each gradient, read at once."""

    def work() -> None:
        for g in _gradients(workload):
            for value in (g.mean(), g.std(correction=0), g.norm(), g.max(), g.min(), (g == 0).sum()):
                value.item()

    run, seconds = _timed(work)
    yield Calls(after_backward=run, own_seconds=seconds)


@contextlib.contextmanager
def tensorboard(log_every: int, histograms: bool, workload: Workload) -> Iterator[Calls]:
    """TensorBoard's own writer: a scalar or a histogram per parameter."""
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory(prefix="bench-tensorboard-") as directory:
        writer = SummaryWriter(log_dir=directory)
        steps = itertools.count(1)

        def work() -> None:
            step = next(steps)
            if step % log_every:
                return
            for name, parameter in workload.model.named_parameters():
                if histograms:
                    writer.add_histogram(name, parameter.grad, step)
                else:
                    writer.add_scalar(name, parameter.grad.norm().item(), step)

        run, seconds = _timed(work)
        try:
            yield Calls(after_backward=run, own_seconds=seconds)
        finally:
            writer.close()


@contextlib.contextmanager
def wandb_watch(log_freq: int, daemon: int, workload: Workload) -> Iterator[Calls]:
    """wandb.watch in offline mode; its service is another process on this host and counts."""
    import wandb

    with tempfile.TemporaryDirectory(prefix="bench-wandb-") as directory:
        quiet = wandb.Settings(silent=True, console="off")
        run = wandb.init(project="bench", mode="offline", dir=directory, settings=quiet)
        run.watch(workload.model, log="gradients", log_freq=log_freq)

        def helpers() -> list[int]:
            return [p.pid for p in psutil.Process().children(recursive=True) if p.pid != daemon]

        try:
            yield Calls(after_step=lambda loss: run.log({"loss": loss.item()}), helpers=helpers)
        finally:
            run.unwatch(workload.model)
            run.finish()
            wandb.teardown()


DEFAULTS, FLOOR, NOISE = "defaults", "floor", "noise"
QUICK = (DEFAULTS, "ungoverned", FLOOR)


def variants(endpoint: str, daemon: int) -> list[Variant]:
    """Every variant, in the table's order; those whose library is missing are left out."""
    board = importlib.util.find_spec("tensorboard") is not None
    weights = importlib.util.find_spec("wandb") is not None
    rows = [
        Variant(NOISE, "nothing (how much noise there is)", bare, every_round=True),
        Variant(
            DEFAULTS,
            "**Caboose**, defaults",
            partial(watched, endpoint, daemon, None, True),
            period=SAMPLE_EVERY,
            every_round=True,
            has_background=True,
        ),
        Variant(
            "ungoverned",
            "**Caboose**, norms on every step whatever they cost",
            partial(watched, endpoint, daemon, None, False),
            period=SAMPLE_EVERY,
            has_background=True,
        ),
        Variant(
            "everything",
            "**Caboose**, everything on every step",
            partial(watched, endpoint, daemon, 1, False),
            has_background=True,
        ),
        Variant(FLOOR, "the floor: one norm over all gradients", total_norm),
        Variant("norms", "`.grad.norm().item()` per parameter", norm_items),
        Variant("statistics", "six statistics per parameter, `.item()`", statistics_items),
    ]
    if board:
        scalars, histograms = partial(tensorboard, 1, False), partial(tensorboard, 50, True)
        rows += [
            Variant("tb-scalars", "TensorBoard: norm per parameter", scalars, has_background=True),
            Variant("tb-histograms", "TensorBoard: histograms, every 50 steps", histograms, 50, has_background=True),
        ]
    if weights:
        often, seldom = partial(wandb_watch, 1, daemon), partial(wandb_watch, 100, daemon)
        rows += [
            Variant("wandb-1", "wandb.watch, log_freq=1", often, has_background=True),
            Variant("wandb-100", "wandb.watch, log_freq=100", seldom, 100, has_background=True),
        ]
    return rows
