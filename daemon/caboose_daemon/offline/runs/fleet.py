"""The jobs of several daemons in one list: all are asked at the same time, and one that does not answer is named.

Daemons know nothing of each other. A job is distinguished from another of the same name by the daemon that has it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from caboose_daemon.offline.runs.run import Json, RunError
from caboose_daemon.offline.runs.source import DaemonSource

MAX_ASKED_AT_ONCE = 32


@dataclass(frozen=True)
class FleetJobs:
    """What the daemons answered."""

    rows: Sequence[Json]
    """As one daemon lists them, each with `daemon`, its address."""
    unanswered: Sequence[Json]
    """Daemons that did not answer: `daemon` and `error`."""


def jobs_of(daemons: Sequence[DaemonSource]) -> FleetJobs:
    """The jobs of all daemons; RunError if none of them answers."""
    with ThreadPoolExecutor(min(MAX_ASKED_AT_ONCE, len(daemons))) as pool:
        answers = list(pool.map(_jobs_of, daemons))
    rows = [{**row, "daemon": one.where} for one, (found, _) in zip(daemons, answers, strict=True) for row in found]
    failed = [{"daemon": one.where, "error": error} for one, (_, error) in zip(daemons, answers, strict=True) if error]
    if len(failed) == len(daemons):
        raise RunError("; ".join(str(one["error"]) for one in failed))
    return FleetJobs(rows, failed)


def _jobs_of(daemon: DaemonSource) -> tuple[list[Json], str]:
    try:
        return daemon.jobs(), ""
    except RunError as error:
        return [], str(error)
