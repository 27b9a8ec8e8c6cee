"""Fixtures of the daemon's tests: the command line, a core with a journal, and a check of every diagnosis."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from caboose_daemon.diagnosis import weighing
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.incidents.diagnosis_record import RankedCause, Refusal
from support.contradictions import contradiction
from support.processes import caboose_command, clean_environment
from support.scenario import JournaledCore

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def no_contradictions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No diagnosis that a test makes leads with a cause that a known fact excludes."""
    found: list[str] = []
    refuse = weighing.refuse

    def checked(case: Case, ranked: Sequence[RankedCause]) -> tuple[list[RankedCause], list[Refusal]]:
        causes, refusals = refuse(case, ranked)
        found.extend(filter(None, [contradiction(case, causes)]))
        return causes, refusals

    monkeypatch.setattr(weighing, "refuse", checked)
    yield
    assert not found, sorted(set(found))


@pytest.fixture
def run_caboose(tmp_path: Path) -> Run:
    """Runs `caboose ...` to its end, in a directory of its own."""

    def run(*arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            caboose_command(*arguments),
            capture_output=True,
            text=True,
            timeout=30,
            cwd=tmp_path,
            env=clean_environment(**env),
        )

    return run


@pytest.fixture
def refused_start(run_caboose: Run) -> Callable[..., str]:
    """Starts a daemon that must not start; returns the one line it says, after the check that it is one."""

    def start(*arguments: str, **env: str) -> str:
        free = {"--listen": "tcp://127.0.0.1:0", "--http": "127.0.0.1:0"}
        given = [word for flag, value in free.items() if flag not in arguments for word in (flag, value)]
        ended = run_caboose("daemon", *given, *arguments, **env)
        lines = ended.stderr.splitlines()
        assert ended.returncode == 2, ended.stderr
        assert len(lines) == 1, ended.stderr
        assert ended.stdout == ""
        return lines[0].removeprefix("caboose: ")

    return start


@pytest.fixture
def journaled(tmp_path: Path) -> Iterator[Callable[..., JournaledCore]]:
    """Makes cores on one journal; the files are closed afterwards."""
    made: list[JournaledCore] = []

    def make(**settings: Any) -> JournaledCore:
        made.append(JournaledCore(tmp_path / "journal.sqlite", **settings))
        return made[-1]

    yield make
    for core in made:
        core.close()
