"""A run in Weights & Biases, offline or online.

W&B accepts steps in order only: a validation older than the newest step is logged with that step, and incidents go
to the run's summary.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import wandb

from caboose_daemon.out.export.items import EDGES, Floats
from caboose_daemon.out.export.mirror import OpenWriter
from caboose_daemon.out.export.runs import MirrorRun

MAX_ID = 64
FINISH_SECONDS = 4.0
"""Maximum wait for the network at the end of a run."""
Mode = Literal["offline", "online"]


class WandbRun:
    """One run."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._step = 0

    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Numbers of one step."""
        self._log(step, values)

    def histograms(self, step: int, time: float, counts: Mapping[str, Floats]) -> None:
        """Histograms over powers of two."""
        self._log(step, {name: wandb.Histogram(np_histogram=(c, EDGES)) for name, c in counts.items()})

    def text(self, step: int, time: float, name: str, text: str) -> None:
        """A field of the summary."""
        self._run.summary[name] = text

    def flush(self) -> None:
        """Nothing to do: W&B's process writes continuously."""

    def close(self) -> None:
        self._run.finish()

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        self._step = max(self._step, step)
        if values:
            self._run.log(dict(values), step=self._step)


def run_writer(project: str, entity: str, mode: Mode) -> OpenWriter:
    """Opens runs of one project."""

    def open_run(directory: Path, run: MirrorRun) -> WandbRun:
        slug = re.sub(r"[^A-Za-z0-9_.-]", "-", run.job)[:MAX_ID]
        opened = wandb.init(
            project=project,
            entity=entity or None,
            mode=mode,
            dir=str(directory),
            id=f"{slug}-{run.number}-{run.nonce}",
            name=f"{run.job} {run.name}",
            group=run.job,
            job_type="caboose",
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                save_code=False,
                x_disable_stats=True,
                x_disable_meta=True,
                finish_timeout=FINISH_SECONDS,
            ),
        )
        return WandbRun(opened)

    return open_run
