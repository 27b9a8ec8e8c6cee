"""Runs a list of drills with a progress bar, and yields each result."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from caboose_daemon.ops.drills.catalogue import Drill
from caboose_daemon.ops.drills.results import Result
from caboose_daemon.ops.drills.session import DrillSession


def conduct(
    drills: Sequence[Drill], num_seeds: Callable[[Drill], int], console: Console, first_seed: int = 0
) -> Iterator[Result]:
    """Under one daemon. Ctrl-C and SIGTERM end all processes."""
    previous = signal.signal(signal.SIGTERM, _leave)
    session = DrillSession()
    try:
        with session, _bar(console) as bar:
            whole = bar.add_task("all", total=sum(num_seeds(drill) * drill.seconds for drill in drills))
            for drill in drills:
                seeds = range(first_seed, first_seed + num_seeds(drill))
                task = bar.add_task(drill.name, total=len(seeds))
                yield session.run(drill, seeds, lambda done, task=task: bar.update(task, completed=done))  # type: ignore[misc]  # a default argument
                bar.remove_task(task)
                bar.advance(whole, len(seeds) * drill.seconds)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not leave processes behind
            signal.signal(number, signal.SIG_IGN)
        session.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, previous)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description:20}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)
