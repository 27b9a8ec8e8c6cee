"""Logs with few rows, each of which stands for many steps, and what the rules raise in them."""

import csv
from pathlib import Path

import numpy as np

from caboose_daemon.config import load
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.offline.replay.logs import Log, read_log
from caboose_daemon.offline.replay.player import play
from support.curves import Float64


def log_of(directory: Path, losses: Float64, validations: Float64 | None = None, *, every: int = 250) -> Log:
    """A log with a row for every 250 steps; a validation of NaN is a gap."""
    path = directory / "log.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "loss", *(["val_loss"] if validations is not None else [])])
        for i, loss in enumerate(losses.tolist()):
            rows.writerow([i * every, loss, *([validations[i]] if validations is not None else [])])
    return read_log(path)


def raised(directory: Path, losses: Float64, validations: Float64 | None = None, *, every: int = 250) -> dict[str, str]:
    """Rule to highest severity above info."""
    found: dict[str, str] = {}
    for finding in play(log_of(directory, losses, validations, every=every), load(None).rules).findings:
        if found.get(finding.rule) != "critical":
            found[finding.rule] = str(finding.severity)
    return found


def episodes(
    directory: Path, rule: str, losses: Float64, validations: Float64 | None = None, *, every: int = 250
) -> list[Episode]:
    """The episodes of one rule, those of severity info left out."""
    judged = play(log_of(directory, losses, validations, every=every), load(None).rules)
    return [episode for episode in judged.episodes if episode.rule == rule and episode.severity != "info"]


def fallen(num: int, start: float, level: float, rows: float) -> Float64:
    """A curve that falls from its start to a level, by a factor of e in so many rows."""
    return np.asarray(level + (start - level) * np.exp(-np.arange(num) / rows), dtype=np.float64)
