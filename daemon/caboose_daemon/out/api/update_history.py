"""The typical update-to-weight ratio of each sample that a journal keeps.

Design
------
The ratio is the one that rules use: the lower median over the weight matrices of the newest model (see
`rules/parts/updates`). Whether a learning rate still has an effect shows only against the run's own history, which the
memory of a daemon does not reach back to.
"""

from typing import Any

import numpy as np

from caboose_daemon.rules.parts.updates import Updates
from caboose_daemon.store.sample_history import SampleReader

LAST_STEP = 2**53
STAT = "update_ratio"


def typical_updates(reader: SampleReader) -> list[dict[str, Any]]:
    """Attempt, step and ratio of each sample that has one, oldest first."""
    updates, layers = Updates(), reader.model.layers
    found = []
    for sample in reader.samples([STAT], 0, LAST_STEP):
        column = sample.columns.get(STAT)
        if column is None:
            continue
        ratios = np.full(len(layers), -1.0)
        ratios[: len(column)] = column
        value = updates.median(ratios, np.isfinite(ratios) & (ratios >= 0), layers)
        if value is not None:
            found.append({"attempt": sample.attempt, "step": sample.step, "ratio": value})
    return found
