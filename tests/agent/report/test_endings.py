"""A process that ends says with what error, however it ends, and ends as it would without the agent."""

import json
import subprocess
import sys

import pytest

from caboose_wire import Bye, Hello
from support.collector import collector
from support.jobs.leaving import job_of
from support.processes import clean_environment
from support.training import JOBS

pytestmark = pytest.mark.slow

SHARD = "ValueError: bad shard"
EXPECTED: dict[str, tuple[str, str]] = {
    "end": ("", ""),
    "sys.exit(0)": ("", ""),
    "sys.exit(3)": ("SystemExit: 3", ""),
    "sys.exit of a text": ("SystemExit: no data left", ""),
    "sys.exit of another thread": ("", ""),
    "exit of a handled error": (SHARD, ""),
    "os._exit(0)": ("", ""),
    "os._exit(4)": ("EarlyExit: os._exit(4)", ""),
    "os._exit of another thread": ("EarlyExit: os._exit(5)", ""),
    "exception": (SHARD, ""),
    "close in a finally": (SHARD, ""),
    "close in an except": ("", ""),
    "an error at a prompt": ("", ""),
    "exit from a with block": ("", ""),
    "interrupted, exit(130)": ("KeyboardInterrupt: ", "SIGINT"),
    "USR1": ("", "SIGUSR1"),
    "handled USR1": ("", "SIGUSR1"),
    "error after USR1": (SHARD, "SIGUSR1"),
    "an error of a forked rank": ("EarlyExit: os._exit(1)", ""),
    "SIGTERM of a forked rank": ("", "SIGTERM"),
}
"""The error and the signal in the Bye."""


def leave(endpoint: str, *mode: str) -> dict[str, int]:
    """What the parents saw."""
    done = subprocess.run(
        [sys.executable, str(JOBS / "leaving.py"), endpoint, *mode],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    statuses: dict[str, int] = json.loads(done.stdout)
    return statuses


def test_an_ending_is_reported_with_its_error_and_signal_and_is_the_same_as_without_the_agent() -> None:
    with collector() as listening:
        statuses = leave(listening.endpoint)
        listening.wait_for(Bye, count=len(EXPECTED))
        messages = list(listening.by_peer)
    jobs = {peer: message.job for peer, message in messages if isinstance(message, Hello)}
    byes = {jobs[peer]: (message.error, message.signal) for peer, message in messages if isinstance(message, Bye)}

    assert {place: byes.get(job_of(place)) for place in EXPECTED} == EXPECTED
    assert statuses == leave(listening.endpoint, "bare")
