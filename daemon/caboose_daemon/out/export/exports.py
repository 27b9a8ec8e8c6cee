"""Passes the pipeline's results to Grafana and the mirrors, as configured.

Design
------
Called on the loop's thread with the state's lock held, so it only selects items and puts them into outboxes; items are
frozen. Without configuration there are no outboxes, and a step costs one check of an empty list. Libraries are imported
only if configured; a missing one stops the start with the command that installs it.
"""

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from caboose_daemon.config import Config, ExportConfig, GrafanaConfig
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.state import ExportCounts, State
from caboose_daemon.out.export.items import Curves, pick
from caboose_daemon.out.export.mirror import Mirror, OpenWriter
from caboose_daemon.out.outbox import CLOSE_SECONDS, ExportOutbox
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.steps.columns import StepSummary
from caboose_wire import Event

MIRROR_EXTRA = "pip install 'caboose[mirror]'"
GRAFANA_EXTRA = "pip install 'caboose[grafana]', or set annotations = false: links need no library"


class ExportError(ValueError):
    """An export cannot work as configured; the message is one line."""


class Exports:
    """The outboxes of a daemon."""

    def __init__(
        self,
        poster: ExportOutbox[Any] | None = None,
        mirrors: Iterable[ExportOutbox[Any]] = (),
        curves: Curves | None = None,
    ) -> None:
        self._poster = poster
        self._mirrors = tuple(mirrors)
        self._curves = curves or Curves()

    def start(self) -> None:
        for outbox in self._all:
            outbox.start()

    def close(self, patience: float = CLOSE_SECONDS) -> None:
        """Delivers queued items within `patience` seconds."""
        deadline = time.monotonic() + patience
        for outbox in self._all:
            outbox.close(max(0.0, deadline - time.monotonic()))

    @property
    def _all(self) -> tuple[ExportOutbox[Any], ...]:
        return self._mirrors if self._poster is None else (self._poster, *self._mirrors)

    def attempt_began(self, job: Job) -> None:
        """Posts restarts and rollbacks to Grafana; the first attempt is not posted."""
        if self._poster is not None and job.attempt is not None and job.num_attempts > 1:
            from caboose_daemon.out.grafana.annotations import of_attempt

            self._poster.put(of_attempt(job.name, job.num_attempts, job.attempt.began))

    def step_closed(self, job: Job, summary: StepSummary) -> None:
        """To the mirrors, every Nth step as configured."""
        if self._mirrors:
            item = self._curves.pick(job, summary)
            if item is not None:
                self._mirror(item)

    def incident_changed(self, job: Job, incident: Incident) -> None:
        if self._poster is not None:
            self._poster.put(incident)
        if self._mirrors:
            self._mirror(incident)

    def decision_changed(self, job: Job, decision: Decision) -> None:
        """Only committed and failed rollbacks are exported."""
        if decision.kind != "rollback" or decision.state not in ("committed", "failed"):
            return
        if self._poster is not None:
            from caboose_daemon.out.grafana.annotations import of_rollback

            taken = (s.time for s in reversed(job.recent) if s.step == decision.target)
            self._poster.put(of_rollback(decision, next(taken, None)))
        if self._mirrors:
            self._mirror(decision)

    def event_declared(self, job: Job, event: Event) -> None:
        """Validation results to the mirrors."""
        item = pick(job, event) if self._mirrors else None
        if item is not None:
            self._mirror(item)

    def _mirror(self, item: Any) -> None:
        for outbox in self._mirrors:
            outbox.put(item)


def make_exports(config: Config, state: State, data_dir: Path) -> Exports:
    """The configured exports, not started; ExportError if one cannot work."""
    poster = _poster(config.grafana, state)
    mirrors = _mirrors(config.export, state, data_dir)
    export = config.export
    return Exports(poster, mirrors, Curves(export.every_steps, export.histogram_seconds if export.histograms else None))


def _poster(config: GrafanaConfig, state: State) -> ExportOutbox[Any] | None:
    if not config.url or not config.annotations:
        return None
    _need("grafana_client", "[grafana] url", "grafana-client", GRAFANA_EXTRA)
    from caboose_daemon.out.grafana.connection import GrafanaConnection, read_token
    from caboose_daemon.out.grafana.library import GrafanaError
    from caboose_daemon.out.grafana.poster import Poster

    try:
        poster = Poster(GrafanaConnection(config.url, read_token(config.token_file)))
    except GrafanaError as error:
        raise ExportError(f"[grafana] {error}") from None
    return ExportOutbox(poster, state.exports.setdefault(poster.name, ExportCounts()))


def _mirrors(export: ExportConfig, state: State, data_dir: Path) -> list[ExportOutbox[Any]]:
    mirrors = []
    if export.tensorboard_dir:
        _need("tensorboardX", "[export] tensorboard_dir", "tensorboardX", MIRROR_EXTRA)
        from caboose_daemon.out.export.tensorboard import EventFile

        mirrors.append(_mirror("tensorboard", _directory(export.tensorboard_dir), EventFile, state))
    if export.wandb_project:
        _need("wandb", "[export] wandb_project", "wandb", MIRROR_EXTRA)
        from caboose_daemon.out.export.weights_and_biases import run_writer

        directory = _directory(export.wandb_dir) if export.wandb_dir else data_dir / "wandb"
        opener = run_writer(export.wandb_project, export.wandb_entity, export.wandb_mode)
        mirrors.append(_mirror("wandb", directory, opener, state))
    if export.mlflow_uri:
        _need("mlflow", "[export] mlflow_uri", "mlflow-skinny", "pip install 'caboose[mlflow]'")
        from caboose_daemon.out.export.mlflow_run import mlflow_writer

        opener = mlflow_writer(export.mlflow_uri, export.mlflow_experiment)
        mirrors.append(_mirror("mlflow", data_dir / "mlflow", opener, state))
    if export.trackio_project:
        os.environ["TRACKIO_DIR"] = str(_directory(export.trackio_dir) if export.trackio_dir else data_dir / "trackio")
        _need("trackio", "[export] trackio_project", "trackio", "pip install 'caboose[trackio]'")
        from caboose_daemon.out.export.trackio_run import trackio_writer

        mirrors.append(_mirror("trackio", data_dir / "trackio-runs", trackio_writer(export.trackio_project), state))
    return mirrors


def _mirror(name: str, directory: Path, open_writer: OpenWriter, state: State) -> ExportOutbox[Any]:
    tally = state.exports.setdefault(name, ExportCounts())
    return ExportOutbox(Mirror(name, directory, open_writer, tally), tally)


def _directory(path: str) -> Path:
    return Path(path).expanduser().resolve()


def _need(module: str, key: str, library: str, install: str) -> None:
    try:
        with _without_torch():
            importlib.import_module(module)
    except ImportError as error:
        missing = library if getattr(error, "name", None) == module else f"{library} ({error})"
        raise ExportError(f"{key} is set, but {missing} is not installed: {install}") from None


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """tensorboardX imports torch if installed, which takes seconds and hundreds of megabytes without use."""
    is_hidden = "torch" not in sys.modules
    if is_hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]  # makes the import fail
    try:
        yield
    finally:
        if is_hidden:
            del sys.modules["torch"]
