"""Logs of runs that never were, written as a trainer writes them, with their settings beside them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def falling(num: int, floor: float, *, tau: float = 150.0, noise: float = 0.02, seed: int = 0) -> Any:
    """A loss that falls to a floor, with noise."""
    return floor + 5 * np.exp(-np.arange(num) / tau) + np.random.default_rng(seed).normal(0, noise, num)


def written(
    directory: Path,
    name: str,
    losses: ArrayLike,
    *,
    lr: float | ArrayLike | None = None,
    validations: Mapping[int, float] | None = None,
    steps: ArrayLike | None = None,
    **settings: Any,
) -> str:
    """Writes NAME.csv and NAME.config.json; returns the log's path."""
    values = np.asarray(losses, dtype=np.float64)
    numbers = np.arange(len(values)) if steps is None else np.asarray(steps)
    rates = None if lr is None else np.broadcast_to(np.asarray(lr, dtype=np.float64), values.shape)
    rows = ["step,loss,lr,val_loss"]
    for i, (step, loss) in enumerate(zip(numbers.tolist(), values.tolist(), strict=True)):
        checked = (validations or {}).get(step, "")
        rows.append(f"{step},{loss:.6g},{'' if rates is None else rates[i]},{checked}")
    (directory / f"{name}.csv").write_text("\n".join(rows) + "\n")
    if settings:
        (directory / f"{name}.config.json").write_text(json.dumps(settings))
    return str(directory / f"{name}.csv")
