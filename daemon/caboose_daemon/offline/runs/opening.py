"""Opens the runs that a user names: a job of the daemon, a job in a journal, or a log.

Design
------
`FILE.sqlite:JOB` is a job in a journal, `FILE.sqlite` all of its jobs; `FILE.db:RUN` a run in the database of a
tracker; any other path that exists is a log, as `caboose replay` reads it; anything else is a job of the daemon. A name
with a slash that is no file is an error, and the daemon is not asked.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from caboose_daemon.offline.replay.logs.journal_file import MAGIC
from caboose_daemon.offline.replay.logs.journal_file import NAME as JOURNAL
from caboose_daemon.offline.replay.logs.tracker_databases import is_of_tracker
from caboose_daemon.offline.runs.from_log import from_log
from caboose_daemon.offline.runs.of_job import run_of_job
from caboose_daemon.offline.runs.run import Run, RunError
from caboose_daemon.offline.runs.source import MAX_NAMES, DaemonSource, JournalSource, RunSource
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
        source = DaemonSource(connect())
        jobs = [str(row["job"]) for row in source.jobs()]
        if text not in jobs:
            known = ", ".join(jobs[:MAX_NAMES]) or "no job yet"
            raise RunError(f"no job and no file {text!r}; {source.name} knows {known}")
        yield run_of_job(source, text)
    elif _is_journal(file) and is_of_tracker(file):
        yield from_log(Path(f"{file}:{job}") if job else file, rules, on_progress)
    elif _is_journal(file):
        yield from journal_runs(file, job)
    elif job:
        raise RunError(f"{text}: {file} is not a journal, so it has no job {job!r}; name the file alone")
    else:
        yield from_log(file, rules, on_progress)


def open_source(journal: Path | None, connect: Callable[[], Client]) -> RunSource:
    """The journal, a file or a daemon's data directory, if one is named; else the daemon."""
    return DaemonSource(connect()) if journal is None else JournalSource(_journal_file(journal))


def journal_runs(path: Path, name: str = "") -> Iterator[Run]:
    """The job of this name, or every job that has steps."""
    source = JournalSource(path)
    jobs = source.with_steps()
    if not jobs:
        raise RunError(f"{path}: a journal without steps")
    if name and name not in jobs:
        raise RunError(f"{path}: no job {name!r}; it holds {', '.join(jobs[:MAX_NAMES])}")
    for job in [name] if name else jobs:
        yield run_of_job(source, job)


def _journal_file(path: Path) -> Path:
    return path / JOURNAL if path.is_dir() and (path / JOURNAL).is_file() else path


def _split(text: str) -> tuple[Path | None, str]:
    """The file and the job within it; no file where this is the name of a job."""
    path = Path(text)
    if path.exists():
        return _journal_file(path), ""
    for place in (i for i, char in enumerate(text) if char == ":"):
        file = Path(text[:place])
        if place and file.exists():
            return _journal_file(file), text[place + 1 :]
    if "/" in text or path.suffix in (".sqlite", ".csv", ".json", ".jsonl"):
        raise RunError(f"{text}: no such file")
    return None, ""


def _is_journal(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
