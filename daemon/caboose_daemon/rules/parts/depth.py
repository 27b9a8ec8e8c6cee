"""Which layers are weight matrices, in order of depth: the layers that a comparison over depth may use.

Design
------
The layer table lists parameters in the order in which the model registers them, which is from input to output in nearly
every model. Biases, norms, embeddings and small special parameters (tokens, gates, scales) are left out: their
gradients have other magnitudes, and comparing them with matrices makes healthy nets look ill.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.steps.masked import LayerValues
from caboose_wire import Layer

ODD_KINDS = ("norm", "embedding", "prelu")
ODD_NAMES = ("bias", "norm", "embed", "token", "gamma", "beta", "scale", "position", "pos_", "wpe", "wte")


def is_matrix(layer: Layer) -> bool:
    """Whether kind and name indicate a weight matrix or a convolution kernel."""
    kind, last = layer.kind.lower(), layer.name.rsplit(".", 1)[-1].lower()
    return not any(word in kind for word in ODD_KINDS) and not any(word in last for word in ODD_NAMES)


class Matrices:
    """The trained weight matrices of a layer table; rebuilt when the table changes."""

    def __init__(self) -> None:
        self._of: Sequence[Layer] | None = None
        self.rows: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self.root_sizes: NDArray[np.float64] = np.zeros(0)

    def look(self, layers: Sequence[Layer]) -> bool:
        """Reads the layer table; whether it changed."""
        if layers is self._of or layers == self._of:
            return False
        self._of = layers
        used = [
            row
            for row, layer in enumerate(layers)
            if layer.trainable and layer.held and layer.placement != "unknown" and is_matrix(layer)
        ]
        self.rows = np.array(used, dtype=np.intp)
        self.root_sizes = np.sqrt(np.array([max(1, layers[row].numel) for row in used], dtype=np.float64))
        return True

    def rms(self, norms: LayerValues) -> NDArray[np.float64]:
        """Gradient per element of each matrix; NaN where it is missing, not sampled, or not finite."""
        found, has = norms.values[self.rows], norms.has[self.rows]
        return np.where(has & np.isfinite(found), found, np.nan) / self.root_sizes
