"""A run of MLflow's file store: a directory `mlruns/EXPERIMENT/RUN` with one file for each metric.

Design
------
A metric's file has a line for each value: milliseconds since 1970, value, step. Names with slashes are directories.
Values of one step become one row, in the order of their steps between one place where the loss goes back and the next.
"""

from pathlib import Path

from caboose_daemon.offline.replay.logs.content import opened
from caboose_daemon.offline.replay.logs.log import LogError
from caboose_daemon.offline.replay.logs.scalars import table_of_scalars
from caboose_daemon.offline.replay.logs.table import Table

METRICS, META = "metrics", "meta.yaml"


def is_mlflow_run(path: Path) -> bool:
    """Whether a directory is that of one run."""
    return (path / META).is_file() and (path / METRICS).is_dir()


def read_mlflow_run(path: Path) -> Table:
    """The table that the metrics of a run make."""
    steps: list[int] = []
    names: list[str] = []
    values: list[float] = []
    for file in sorted(each for each in (path / METRICS).rglob("*") if each.is_file()):
        name = file.relative_to(path / METRICS).as_posix()
        with opened(file) as lines:
            for number, line in enumerate(lines, 1):
                parts = line.split()
                try:
                    _, value, step = parts[0], float(parts[1]), int(parts[2])
                except (IndexError, ValueError):
                    if not line.endswith(b"\n"):
                        break  # the run may still be writing it
                    raise LogError(f"{file}: line {number}: not time, value and step") from None
                steps.append(step)
                names.append(name)
                values.append(value)
    if not steps:
        raise LogError(f"{path}: an MLflow run without metrics yet; try again when it has logged its first step")
    return table_of_scalars(path, steps, names, values)
