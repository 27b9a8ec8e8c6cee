"""Writes jobs' steps, histograms and incidents as runs of another tool's format: the common part of all mirrors.

Design
------
The target of an outbox. It tracks each job's open run, converts items to names and numbers and passes them to a
`MirrorWriter`. A writer that raised is closed and opened again with the next item; only the writers of the most recent
jobs stay open.
"""

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.state import ExportCounts
from caboose_daemon.out.export.items import Declared, Floats, MirroredStep, histograms, layer_values
from caboose_daemon.out.export.runs import MirrorRun, RunBook
from caboose_daemon.rollback_state.decision import Decision

MAX_OPEN = 64
MAX_BOOKS = 256
"""Maximum jobs whose run is kept in memory; job names come from the network."""
MAX_EARLY = 100


class MirrorWriter(Protocol):
    """One run in a mirror's format."""

    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Numbers of one step."""

    def histograms(self, step: int, time: float, counts: Mapping[str, Floats]) -> None:
        """Counts in the bins of `items.EDGES`."""

    def text(self, step: int, time: float, name: str, text: str) -> None:
        """A text for people."""

    def flush(self) -> None:
        """Writes buffered data."""

    def close(self) -> None:
        """Ends the run."""


Item = MirroredStep | Declared | Incident | Decision
OpenWriter = Callable[[Path, MirrorRun], MirrorWriter]


class Mirror:
    """A target for steps, validations, incidents and rollbacks."""

    def __init__(self, name: str, directory: Path, open_writer: OpenWriter, tally: ExportCounts) -> None:
        self.name = name
        self._tally = tally
        self._directory = directory
        self._open_writer = open_writer
        self._books: OrderedDict[str, RunBook] = OrderedDict()
        """Of the most recent jobs; others are on disk."""
        self._writers: OrderedDict[str, tuple[MirrorRun, MirrorWriter]] = OrderedDict()
        self._early: dict[str, deque[Declared]] = {}
        """Validations of steps not yet aligned; held back because some formats need steps in order."""

    def take(self, item: Item) -> None:
        book = self._book(item.job)
        run = book.at(item.summary.step, item.rewound_at) if isinstance(item, MirroredStep) else book.last
        if isinstance(item, Declared) and item.step > run.last_step:
            self._early.setdefault(item.job, deque(maxlen=MAX_EARLY)).append(item)
            return
        try:
            writer = self._writer(book, run)
            self._write(writer, item)
            early = self._early.get(item.job)
            while early and early[0].step <= run.last_step:
                self._write(writer, early.popleft())
        except BaseException:
            self._close_writer(item.job)
            raise

    def _book(self, job: str) -> RunBook:
        book = self._books.get(job)
        if book is None:
            if len(self._books) >= MAX_BOOKS:
                oldest, closed = self._books.popitem(last=False)
                self._close_writer(oldest)
                self._early.pop(oldest, None)
                closed.save()
            book = self._books[job] = RunBook(self._directory, job)
        self._books.move_to_end(job)
        return book

    def _write(self, writer: MirrorWriter, item: Item) -> None:
        if isinstance(item, Decision):
            name = f"rollbacks/{item.number}"
            writer.text(item.boundary or item.step, item.closed_time or item.time, name, "  \n".join(item.explain()))
        elif isinstance(item, Incident):
            step = item.opened_step if item.closed_step is None else item.closed_step
            time = item.opened_time if item.closed_time is None else item.closed_time
            writer.text(step, time, f"incidents/{item.number}_{item.rule}", incident_text(item))
        elif isinstance(item, Declared):
            writer.scalars(item.step, item.time, item.values)
        else:
            step, time = item.summary.step, item.summary.time
            sample = item.sample
            writer.scalars(step, time, {**item.values, **(layer_values(sample) if sample is not None else {})})
            if sample is not None and sample.histograms is not None:
                counts = histograms(sample.histograms)
                if counts is None:
                    self._tally.num_withdrawn += 1
                else:
                    writer.histograms(step, time, counts)

    def _writer(self, book: RunBook, run: MirrorRun) -> MirrorWriter:
        opened = self._writers.get(run.job)
        if opened is not None and opened[0].number == run.number:
            self._writers.move_to_end(run.job)
            return opened[1]
        self._close_writer(run.job)
        if len(self._writers) >= MAX_OPEN:
            self._close_writer(next(iter(self._writers)))
        directory = book.directory / run.name
        directory.mkdir(parents=True, exist_ok=True)
        writer = self._open_writer(directory, run)
        self._writers[run.job] = (run, writer)
        return writer

    def _close_writer(self, job: str) -> None:
        opened = self._writers.pop(job, None)
        if opened is not None:
            with contextlib.suppress(Exception):  # closed because it failed or was replaced
                opened[1].close()

    def flush(self) -> None:
        """Flushes every writer, then saves each run's position."""
        for _, writer in self._writers.values():
            writer.flush()
        for book in self._books.values():
            book.save()

    def close(self) -> None:
        for book in self._books.values():
            book.save()
        for job in list(self._writers):
            _, writer = self._writers.pop(job)
            writer.close()


def incident_text(incident: Incident) -> str:
    """An incident as Markdown."""
    lines = [f"**{incident.severity} {incident.rule}**: {incident.summary}", f"began at step {incident.onset_step}"]
    best = None if incident.diagnosis is None else incident.diagnosis.best
    if best is not None:
        lines.append(f"likely cause: {best.title} ({best.confidence:.0%})")
        lines.append(f"first: {best.advice.first_fix}")
    if not incident.is_open:
        lines.append(f"closed at step {incident.closed_step}: {incident.reason}")
    return "  \n".join(lines)
