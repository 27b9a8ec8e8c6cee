"""How large the updates are against the weights, over the layers for which that says something.

Design
------
The ratio of a layer is that of its real update. Biases, norms and tensors that began at zero change by much of
themselves in a healthy run, and small tensors scatter; what is left are the weight matrices, and their median is the
model's. It is the lower one: of adapters, of which every second matrix begins at zero, the other half decides.
"""

from collections.abc import Sequence

import numpy as np

from caboose_daemon.rules.parts.depth import Matrices
from caboose_daemon.steps.aligned import AlignedStep, middle
from caboose_daemon.steps.view import JobView
from caboose_wire import Layer

MIN_ELEMENTS = 256


class Updates:
    """Follows the updates of one model."""

    def __init__(self) -> None:
        self._matrices = Matrices()
        self._is_large = np.zeros(0, dtype=np.bool_)

    def typical(self, view: JobView) -> float | None:
        """The median update-to-weight ratio of this step's weight matrices; None where no rank looked."""
        return None if view.step is None else self.of(view.step, view.layers)

    def of(self, step: AlignedStep, layers: Sequence[Layer]) -> float | None:
        """The same of any step and its model's layers."""
        if not step.is_sampled:
            return None
        ratios = step.layer_values("update_ratio")
        if ratios is None or len(ratios) != len(layers):
            return None
        if self._matrices.look(layers):
            self._is_large = self._matrices.root_sizes >= MIN_ELEMENTS**0.5
        rows = self._matrices.rows[self._is_large]
        seen = ratios.values[rows[ratios.is_known[rows]]]
        return float(middle(seen)) if len(seen) else None
