"""How large the updates are against the weights, over the layers for which that says something.

Design
------
The ratio of a layer is that of its real update. Biases, norms and tensors that began at zero change by much of
themselves in a healthy run, and small tensors scatter; what is left are the weight matrices, and their median is the
model's.
"""

import numpy as np

from caboose_daemon.rules.depth import Matrices
from caboose_daemon.view import JobView

MIN_ELEMENTS = 256


class Updates:
    """Follows the updates of one model."""

    def __init__(self) -> None:
        self._matrices = Matrices()
        self._is_large = np.zeros(0, dtype=np.bool_)

    def typical(self, view: JobView) -> float | None:
        """The median update-to-weight ratio of this step's weight matrices; None where no rank looked."""
        step = view.step
        if step is None or not step.is_sampled:
            return None
        ratios = step.layer_values("update_ratio")
        if ratios is None or len(ratios) != len(view.layers):
            return None
        if self._matrices.look(view.layers):
            self._is_large = self._matrices.root_sizes >= MIN_ELEMENTS**0.5
        seen = ratios[self._matrices.rows[self._is_large]]
        seen = seen[seen >= 0]
        return float(np.median(seen)) if len(seen) else None
