"""A run read from a log: its curves, what the rules find in them, and settings from files beside it."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from caboose_daemon.config import Config
from caboose_daemon.offline.replay.logs import Log, LogError, read_log
from caboose_daemon.offline.replay.logs.names import layer_of
from caboose_daemon.offline.replay.player import play
from caboose_daemon.offline.runs.run import CURVES, Floats, Run, RunError
from caboose_daemon.out.api import json_shapes
from caboose_daemon.rules.parts.rule import RuleConfig

KNOWN = (*CURVES, "val_loss")
BLIND = "layers, ranks, updates and batches: a log holds curves only"
CONSTANT = frozenset({"batch_size", "world", "num_parameters", "weight_decay", "momentum", "num_classes", "seed"})
"""Columns that are settings if constant; other constant columns may be counters that do not advance."""


def from_log(
    path: Path, rules: Mapping[str, RuleConfig] | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Run:
    """The run in a log file; `on_progress` gets the rows judged so far, and their total."""
    try:
        log = read_log(path)
    except LogError as error:
        raise RunError(str(error)) from None
    total = len(log.steps)
    progress = None if on_progress is None else lambda done: on_progress(done, total)
    judged = play(log, Config().rules if rules is None else rules, progress)
    loss = log.columns["loss"]
    curves = {name: _seen(log, name) for name in CURVES if name in log.columns}
    return Run(
        name=path.stem if path.stem not in ("trainer_state", "metrics", "log") else path.resolve().parent.name,
        source="log",
        where=str(path),
        attempts=_attempts(log),
        steps=log.steps,
        curves={name: values for name, values in curves.items() if np.isfinite(values).any()},
        num_bad=(loss.is_logged & ~np.isfinite(loss.values)).astype(np.int64),
        validations=tuple(_validations(log)),
        layer_norms=dict(_layer_norms(log)),
        found=tuple(judged.incidents),
        incidents=tuple(json_shapes.incident(incident) for incident in judged.incidents),
        settings={**dict(_constants(log)), **log.settings},
        cannot_see=(BLIND,),
    )


def _seen(log: Log, name: str) -> Floats:
    column = log.columns[name]
    return np.where(column.is_logged & np.isfinite(column.values), column.values, np.nan)


def _attempts(log: Log) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    begins = np.zeros(len(log.steps), np.int64)
    begins[1:] = np.diff(log.steps) < 0
    begins[list(log.restarts)] = 1
    return 1 + np.cumsum(begins)


def _validations(log: Log) -> Iterator[tuple[int, float, Mapping[str, float]]]:
    column = log.columns.get("val_loss")
    if column is not None:
        for row in np.flatnonzero(column.is_logged).tolist():
            yield int(log.steps[row]), float(column.values[row]), {}


def _layer_norms(log: Log) -> Iterator[tuple[str, float]]:
    """The last gradient norm of each layer, where the log has them."""
    for name, column in log.columns.items():
        layer = layer_of(name)
        seen = column.values[column.is_logged & np.isfinite(column.values)]
        if layer and len(seen):
            yield layer, float(seen[-1])


def _constants(log: Log) -> Iterator[tuple[str, float]]:
    for name, column in log.columns.items():
        values = column.values[column.is_logged]
        if name in CONSTANT and len(values) and (values == values[0]).all():
            yield name, float(values[0])
