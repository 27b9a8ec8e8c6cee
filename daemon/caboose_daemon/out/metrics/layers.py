"""The series of layers: min, median and max; 32 parts of the depth; the ten worst by name."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.jobs.job import Job
from caboose_daemon.out.metrics.samples import JobSamples
from caboose_daemon.out.metrics.slots import Slots
from caboose_daemon.rules.parts.depth import Matrices

NUM_DEPTHS = 32
NUM_WORST = 10
OF_LAYERS = {"weight_norm": "weight_norm", "update_ratio": "update_ratio"}
OF_MODULES = {
    "activation_std": "activation_std",
    "dead_units_ratio": "activation_dead",
    "saturated_units_ratio": "activation_saturated",
}
"""Names in the table, and names of the arrays in reports."""
Floats = NDArray[np.float64]


class LayerSeries:
    """The layers of one job; remembers the worst ones between scrapes."""

    def __init__(self) -> None:
        self._matrices = Matrices()
        self._worst: dict[str, Slots] = {}

    def add(self, job: Job, samples: JobSamples, now: float) -> None:
        """Adds the values of the last step and of the last sample."""
        self._matrices.look(job.layers)
        names = [layer.name for layer in job.layers]
        matrices = self._matrices.rows if len(self._matrices.rows) else np.arange(len(names))
        if job.last is not None and len(job.last.layer_grad_norm) == len(names):
            norms = job.last.layer_grad_norm
            seen = (norms >= 0) | ~np.isfinite(norms)  # NaN means that the norm was NaN
            self._statistic("gradient_norm", np.where(seen, norms, -1.0), names, matrices, samples, now)
        latest_sample = job.meters.latest_sample
        if latest_sample is None:
            return
        modules = [module.name for module in job.modules]
        for name, array in OF_LAYERS.items():
            values = latest_sample.layers.get(array)
            if values is not None and len(values) == len(names):
                self._statistic(name, np.where(np.isnan(values), -1.0, values), names, matrices, samples, now)
        for name, array in OF_MODULES.items():
            values = latest_sample.modules.get(array)
            if values is not None and len(values) <= len(modules):
                known, rows = np.where(np.isnan(values), -1.0, values), np.arange(len(values))
                self._statistic(name, known, modules[: len(values)], rows, samples, now)

    def _statistic(
        self,
        name: str,
        values: Floats,
        names: Sequence[str],
        rows: NDArray[np.intp],
        samples: JobSamples,
        now: float,
    ) -> None:
        """`values`: negative means unknown, NaN means NaN. `rows`: the rows to compare."""
        finite = np.isfinite(values) & (values >= 0)
        used = rows[finite[rows]]
        if len(used):
            chosen = values[used]
            for stat, value in (("min", chosen.min()), ("median", np.median(chosen)), ("max", chosen.max())):
                samples.add(f"caboose_layer_{name}", float(value), stat)
            depths = used * NUM_DEPTHS // len(values)
            for depth in np.unique(depths).tolist():
                samples.add(f"caboose_depth_{name}", float(np.median(chosen[depths == depth])), f"{depth:02d}")
        slots = self._worst.setdefault(name, Slots(NUM_WORST))
        for row in slots.choose(names, self._badness(name, values, finite), now):
            samples.add(f"caboose_worst_layer_{name}", float(values[row]), names[row])

    @staticmethod
    def _badness(name: str, values: Floats, finite: NDArray[np.bool_]) -> Floats:
        """Sort key of the worst layers: the value, or for a spread its distance from the median in powers of two."""
        seen = finite | ~np.isfinite(values)
        if name != "activation_std" or not finite.any():
            badness = np.where(finite, values, np.inf)
        else:
            usual = max(float(np.median(values[finite])), 1e-30)
            with np.errstate(divide="ignore", invalid="ignore"):
                away = np.abs(np.log2(np.maximum(values, 1e-30) / usual))
            badness = np.where(finite, away, np.inf)
        return np.where(seen, badness, -1.0)
