"""A run in MLflow: in a server's database, or in the files of a directory.

Design
------
Values are sent in batches of at most a thousand, when there are as many or the mirror is flushed, so that a server gets
one request for many steps. MLflow has no histograms: they are left out. Texts become tags, which it cuts at 5,000
characters. Its identifier of a run is kept in a file beside the run, for a restarted daemon.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from caboose_daemon.out.export.items import Floats
from caboose_daemon.out.export.mirror import OpenWriter
from caboose_daemon.out.export.runs import MirrorRun

MAX_BATCH = 1000
"""Values of one request."""
MAX_TEXT = 5000
FILE = "mlflow-run"
FILES_ALLOWED = "MLFLOW_ALLOW_FILE_STORE"
"""Without it MLflow refuses to write files, which it no longer develops."""


class MlflowRun:
    """One run."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self._id = run_id
        self._waiting: list[Any] = []

    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Numbers of one step."""
        self._waiting += [Metric(_name(name), value, int(1000 * time), step) for name, value in values.items()]
        if len(self._waiting) >= MAX_BATCH:
            self.flush()

    def histograms(self, step: int, time: float, counts: Mapping[str, Floats]) -> None:
        """MLflow has none."""

    def text(self, step: int, time: float, name: str, text: str) -> None:
        """A tag."""
        self._client.set_tag(self._id, _name(name), text[:MAX_TEXT])

    def flush(self) -> None:
        while self._waiting:
            self._client.log_batch(self._id, metrics=self._waiting[:MAX_BATCH])
            del self._waiting[:MAX_BATCH]

    def close(self) -> None:
        self.flush()
        self._client.set_terminated(self._id)


def _name(name: str) -> str:
    """A name with MLflow's characters."""
    return re.sub(r"[^\w\-./ :]", "_", name)[:250]


def mlflow_writer(uri: str, experiment: str) -> OpenWriter:
    """Opens runs of one experiment."""
    if "://" not in uri or uri.startswith("file:"):
        os.environ.setdefault(FILES_ALLOWED, "true")

    def open_run(directory: Path, run: MirrorRun) -> MlflowRun:
        client = MlflowClient(tracking_uri=uri)
        known = directory / FILE
        if known.is_file():
            run_id = known.read_text(encoding="utf-8").strip()
            try:
                client.update_run(run_id, status="RUNNING")
            except MlflowException:
                known.unlink()  # it was deleted there
            else:
                return MlflowRun(client, run_id)
        found = client.get_experiment_by_name(experiment)
        number = client.create_experiment(experiment) if found is None else found.experiment_id
        opened = client.create_run(number, run_name=f"{run.job} {run.name}", tags={"caboose.job": run.job})
        known.write_text(opened.info.run_id, encoding="utf-8")
        return MlflowRun(client, opened.info.run_id)

    return open_run
