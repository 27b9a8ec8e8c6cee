"""A run in a project of Trackio: in its file, `DIRECTORY/PROJECT.db`.

Design
------
Written through Trackio's storage. Its `log` has a thread and a queue of its own, which hide a full disk. Steps are
written in batches, since each takes a lock over processes. Histograms and texts are left out: Trackio shows numbers.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from trackio.sqlite_storage import SQLiteStorage

from caboose_daemon.out.export.items import Floats
from caboose_daemon.out.export.mirror import OpenWriter
from caboose_daemon.out.export.runs import MirrorRun

MAX_BATCH = 100
"""Steps of one transaction."""


class TrackioRun:
    """One run."""

    def __init__(self, project: str, name: str, nonce: str) -> None:
        self._project, self._name, self._id = project, name, nonce
        self._waiting: list[tuple[int, str, dict[str, float]]] = []

    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Numbers of one step."""
        self._waiting.append((step, datetime.fromtimestamp(time, UTC).isoformat(), dict(values)))
        if len(self._waiting) >= MAX_BATCH:
            self.flush()

    def histograms(self, step: int, time: float, counts: Mapping[str, Floats]) -> None:
        """Left out."""

    def text(self, step: int, time: float, name: str, text: str) -> None:
        """Left out."""

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            steps, times, values = (list(column) for column in zip(*waiting, strict=True))
            SQLiteStorage.bulk_log(self._project, self._name, values, steps, times, run_id=self._id)

    def close(self) -> None:
        self.flush()


def trackio_writer(project: str) -> OpenWriter:
    """Opens runs of one project, in the directory that TRACKIO_DIR named when the library was imported."""

    def open_run(_directory: Path, run: MirrorRun) -> TrackioRun:
        return TrackioRun(project, f"{run.job} {run.name}", run.nonce)

    return open_run
