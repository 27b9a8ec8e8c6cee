"""How large the updates are against the weights, over the layers for which that says something.

Design
------
The ratio of a layer is that of its real update. Biases, norms and tensors that began at zero change by much of
themselves in a healthy run, and small tensors scatter; what is left are the weight matrices, and their median is the
model's.
"""

import numpy as np

from caboose_daemon.view import JobView

MIN_ELEMENTS = 256


def typical_update(view: JobView) -> float | None:
    """The median update-to-weight ratio of this step's weight matrices; None where no rank looked."""
    step = view.step
    if step is None or not step.is_sampled:
        return None
    ratios = step.layer_values("update_ratio")
    if ratios is None:
        return None
    is_weight = np.array(
        [
            layer.trainable and layer.numel >= MIN_ELEMENTS and "Norm" not in layer.kind and "bias" not in layer.name
            for layer in view.layers
        ]
    )
    if len(is_weight) != len(ratios):
        return None
    seen = ratios[is_weight & (ratios >= 0)]
    return float(np.median(seen)) if len(seen) else None
