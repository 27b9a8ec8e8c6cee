"""The typical update-to-weight ratio, over the layers where that ratio is meaningful.

Design
------
A layer's ratio is that of its real update. Biases, norms and tensors that start at zero change by a large share in a
healthy run, and small tensors scatter. The weight matrices remain, and their median is the model's ratio. It is the
lower median: in adapters every second matrix starts at zero, and the other half decides.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.rules.parts.depth import Matrices
from caboose_daemon.steps.aligned import AlignedStep, middle
from caboose_daemon.steps.view import JobView
from caboose_wire import Layer

MIN_ELEMENTS = 256


class Updates:
    """The updates of one model."""

    def __init__(self) -> None:
        self._matrices = Matrices()
        self._is_large = np.zeros(0, dtype=np.bool_)

    def typical(self, view: JobView) -> float | None:
        """The median update-to-weight ratio of this step's weight matrices; None where no rank sampled it."""
        return None if view.step is None else self.of(view.step, view.layers)

    def of(self, step: AlignedStep, layers: Sequence[Layer]) -> float | None:
        """The same, of any step and its layers."""
        if not step.is_sampled:
            return None
        ratios = step.layer_values("update_ratio")
        if ratios is None or len(ratios) != len(layers):
            return None
        return self.median(ratios.values, ratios.is_known, layers)

    def median(
        self, ratios: NDArray[np.floating], is_known: NDArray[np.bool_], layers: Sequence[Layer]
    ) -> float | None:
        """The same, of one ratio per layer; None where none of the weight matrices has a known one."""
        if self._matrices.look(layers):
            self._is_large = self._matrices.root_sizes >= MIN_ELEMENTS**0.5
        rows = self._matrices.rows[self._is_large]
        seen = ratios[rows[is_known[rows]]]
        return float(middle(seen)) if len(seen) else None
