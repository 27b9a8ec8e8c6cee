"""Runs that a journal holds, read from the file, also while a daemon writes it."""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from caboose_daemon.config import Config
from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.pipeline import Pipeline
from caboose_daemon.jobs.state import State
from caboose_daemon.offline.records.nowhere import Nowhere
from caboose_daemon.offline.runs.of_job import run_of_job
from caboose_daemon.offline.runs.run import Run, RunError
from caboose_daemon.out.api import json_shapes
from caboose_daemon.store.history import HistoryReader, read_jobs
from caboose_daemon.store.journal import JournalError

MAX_ROWS = 200_000
"""Rows of a curve; a longer one comes in buckets that keep their extremes."""


def jobs_in(path: Path) -> list[Job]:
    """The jobs of a journal, the most recent first."""
    now = time.time()
    pipeline = Pipeline(State(rule_configs=Config().rules, started=now), Nowhere())
    try:
        return read_jobs(path, pipeline.make_attempt, now)
    except JournalError as error:
        raise RunError(str(error)) from None


def from_journal(path: Path, name: str = "", *, points: int = MAX_ROWS) -> Iterator[Run]:
    """The job of this name, or every job that has steps."""
    jobs = [job for job in jobs_in(path) if job.recent]
    wanted = [job for job in jobs if job.name == name] if name else jobs
    if not wanted:
        known = ", ".join(job.name for job in jobs[:20]) or "no job with steps yet"
        raise RunError(f"{path}: no job {name!r}; it holds {known}" if name else f"{path}: a journal without steps")
    try:
        reader = HistoryReader(path.resolve())
    except sqlite3.Error as error:
        raise RunError(f"{path}: {error}") from None
    try:
        for job in wanted:
            yield _run(path, job, reader, points)
    finally:
        reader.close()


def _run(path: Path, job: Job, reader: HistoryReader, points: int) -> Run:
    found = sorted(job.incidents, key=lambda item: item.number)
    return run_of_job(
        json_shapes.job_detail(job, time.time(), Config().rollback.budget),
        reader.series(job.name, points),
        name=job.name,
        source="journal",
        where=str(path),
        found=tuple(found),
        incidents=tuple(json_shapes.incident(item) for item in found),
        decisions=tuple(json_shapes.decision(item) for item in job.rollback.decisions),
        ledger=tuple(json_shapes.entry(item) for item in job.rollback.ledger),
        latest_sample=reader.latest_sample(job.name),
    )
