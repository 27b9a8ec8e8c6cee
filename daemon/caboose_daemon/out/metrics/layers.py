"""The series of layers: min, median and max; 32 parts of the depth; the ten worst by name."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.jobs.job import Job
from caboose_daemon.out.metrics.samples import JobSamples
from caboose_daemon.out.metrics.slots import Slots
from caboose_daemon.rules.parts.depth import Matrices
from caboose_daemon.steps.masked import Masked

NUM_DEPTHS = 32
NUM_WORST = 10
OF_LAYERS = {"weight_norm": "weight_norm", "update_ratio": "update_ratio"}
OF_MODULES = {
    "activation_std": "activation_std",
    "dead_units_ratio": "activation_dead",
    "saturated_units_ratio": "activation_saturated",
}
OF_PARTS = {
    "router_entropy_ratio": "router_entropy",
    "router_dead_experts_ratio": "router_dead",
    "attention_logit": "attention_logit",
}
"""Names in the table, and names of the arrays in reports."""
LOW_IS_BAD = frozenset({"router_entropy_ratio"})
"""Shares of which 1 is best."""
Floats = NDArray[np.float64]


class LayerSeries:
    """The layers of one job; remembers the worst ones between scrapes."""

    def __init__(self) -> None:
        self._matrices = Matrices()
        self._worst: dict[str, Slots] = {}

    def add(self, job: Job, samples: JobSamples, now: float) -> None:
        """Adds the values as they were last measured, and how many steps ago that was."""
        self._matrices.look(job.layers)
        names = [layer.name for layer in job.layers]
        matrices = self._matrices.rows if len(self._matrices.rows) else np.arange(len(names))
        norms, latest = job.meters.norms, job.meters.latest
        for source, found in (("gradient", norms), ("sample", latest)):
            if found is not None and job.last is not None:
                samples.add("caboose_layer_age_steps", max(0, job.last.step - found.step), source)
        if norms is not None and len(norms.values) == len(names):
            self._statistic("gradient_norm", norms.values, names, matrices, samples, now)
        if latest is None:
            return
        modules = [module.name for module in job.modules]
        for name, array in OF_LAYERS.items():
            values = latest.layers.get(array)
            if values is not None and len(values) == len(names):
                self._statistic(name, values, names, matrices, samples, now)
        for name, array in (OF_MODULES | OF_PARTS).items():
            values = latest.modules.get(array)
            if values is not None and len(values) <= len(modules):
                self._statistic(name, values, modules[: len(values)], np.arange(len(values)), samples, now)

    def _statistic(
        self,
        name: str,
        found: Masked,
        names: Sequence[str],
        rows: NDArray[np.intp],
        samples: JobSamples,
        now: float,
    ) -> None:
        """`rows`: those to compare."""
        values, finite = np.asarray(found.values, dtype=np.float64), found.is_finite
        used = rows[finite[rows]]
        if len(used):
            chosen = values[used]
            for stat, value in (("min", chosen.min()), ("median", np.median(chosen)), ("max", chosen.max())):
                samples.add(f"caboose_layer_{name}", float(value), stat)
        if len(used) and name not in OF_PARTS:
            depths = used * NUM_DEPTHS // len(values)
            for depth in np.unique(depths).tolist():
                samples.add(f"caboose_depth_{name}", float(np.median(chosen[depths == depth])), f"{depth:02d}")
        slots = self._worst.setdefault(name, Slots(NUM_WORST))
        for row in slots.choose(names, self._badness(name, values, finite, found.has), now):
            samples.add(f"caboose_worst_layer_{name}", float(values[row]), names[row])

    @staticmethod
    def _badness(name: str, values: Floats, finite: NDArray[np.bool_], seen: NDArray[np.bool_]) -> Floats:
        """How far up the list: the value itself; of a spread, how many times it is away from the usual one."""
        if name != "activation_std" or not finite.any():
            badness = np.where(finite, np.maximum(0.0, 1.0 - values) if name in LOW_IS_BAD else values, np.inf)
        else:
            usual = max(float(np.median(values[finite])), 1e-30)
            with np.errstate(divide="ignore", invalid="ignore"):
                away = np.abs(np.log2(np.maximum(values, 1e-30) / usual))
            badness = np.where(finite, away, np.inf)
        return np.where(seen, badness, -1.0)
