"""Finds the run that somebody names: a job of the daemon, a job in a journal, or a log.

Design
------
`FILE.sqlite:JOB` is a job in a journal, `FILE.sqlite` all of its jobs; any other path that exists is a log, as
`caboose replay` reads it; what is no path is a job of the daemon. A name with a stroke in it that is no file is said to
be missing rather than asked for.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from caboose_daemon.offline.replay.logs.journal_file import MAGIC
from caboose_daemon.offline.replay.logs.journal_file import NAME as JOURNAL
from caboose_daemon.offline.runs.from_daemon import from_daemon, known_jobs
from caboose_daemon.offline.runs.from_journal import from_journal
from caboose_daemon.offline.runs.from_log import from_log
from caboose_daemon.offline.runs.run import Run, RunError
from caboose_daemon.out.api.client import Client
from caboose_daemon.rules.parts.rule import RuleConfig

Progress = Callable[[int, int], None]


def open_runs(
    text: str,
    connect: Callable[[], Client],
    rules: Mapping[str, RuleConfig] | None = None,
    on_progress: Progress | None = None,
) -> Iterator[Run]:
    """The runs of this name; RunError where there is none."""
    file, job = _split(text)
    if file is None:
        client = connect()
        jobs = known_jobs(client)
        if text not in jobs:
            known = ", ".join(jobs[:20]) or "no job yet"
            raise RunError(f"no job and no file {text!r}; the daemon at {client.url} knows {known}")
        yield from_daemon(client, text)
    elif _is_journal(file):
        yield from from_journal(file, job)
    elif job:
        raise RunError(f"{text}: {file} is not a journal, so it has no job {job!r}; name the file alone")
    else:
        yield from_log(file, rules, on_progress)


def _split(text: str) -> tuple[Path | None, str]:
    """The file and the job within it; no file where this is the name of a job."""
    path = Path(text)
    if path.exists():
        inner = path / JOURNAL
        return (inner if path.is_dir() and inner.is_file() else path), ""
    for place in (i for i, char in enumerate(text) if char == ":"):
        file = Path(text[:place])
        if place and file.exists():
            inner = file / JOURNAL
            return (inner if file.is_dir() and inner.is_file() else file), text[place + 1 :]
    if "/" in text or path.suffix in (".sqlite", ".csv", ".json", ".jsonl"):
        raise RunError(f"{text}: no such file")
    return None, ""


def _is_journal(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
