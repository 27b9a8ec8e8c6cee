"""Has the runs that a command names read, with a progress bar where that takes a while."""

import sys
from collections.abc import Sequence

from rich.console import Console

from caboose_daemon.cli.config_file import configured_file
from caboose_daemon.cli.exits import fail
from caboose_daemon.cli.progress import progress_bar
from caboose_daemon.cli.request_client import connect
from caboose_daemon.config import ConfigError, load
from caboose_daemon.offline.runs.opening import open_runs
from caboose_daemon.offline.runs.run import Run, RunError

PIPED_WIDTH = 120


def load_runs(names: Sequence[str], address: str | None) -> list[Run]:
    """The runs; ends the command, with one line, where one cannot be had."""
    errors = Console(stderr=True)
    runs: list[Run] = []
    try:
        rules = load(configured_file()).rules
        with progress_bar(errors) as progress:
            for name in names:
                task = progress.add_task(name[-40:], total=None)
                runs += open_runs(
                    name,
                    lambda: connect(address),
                    rules,
                    lambda done, total, task=task: progress.update(task, completed=done, total=total),  # type: ignore[misc]
                )
                progress.remove_task(task)
    except (ConfigError, RunError) as error:
        fail(str(error))
    return runs


def console() -> Console:
    """Standard output, of a fixed width where it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)
