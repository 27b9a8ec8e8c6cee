"""embedding_growth: the embedding or the output layer grows away from the rest of the model.

Design
------
A softmax does not notice a constant that is added to all its logits, so nothing in a cross-entropy holds their scale:
embeddings and output layers can drift, until low precision rounds their updates away. What counts is the typical weight
of such a layer (its norm over the root of its elements) relative to the median of the other matrices: all of them grow
in a healthy run. The ratio must exceed `factor` times the lowest of the first samples (or `factor`, where the layer
began below the others, as an output layer of zeros does), and must still rise (over the later half of the run).

Embeddings are recognised by the class of their module, output layers by their name, or by having as many elements as an
embedding. A model without an embedding is not judged: its last layer has no vocabulary. A warning at most.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.format import amount
from caboose_daemon.rules.parts.curve import Curve, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule, and_more
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.steps.view import JobView
from caboose_wire import Layer

OUTPUTS = frozenset({"lm_head", "head", "output", "embed_out", "unembed", "unembedding", "output_layer"})
"""Names of the last layer of a language model."""
NUM_OTHERS = 3
"""Matrices beside those that are needed to compare."""
MIN_BUCKETS = 16
"""Bucket averages of the ratio before the later half of the run shows a trend."""
CALM = 0.8
"""Share of the threshold below which it is resolved."""


@dataclass(frozen=True)
class EmbeddingGrowthConfig(RuleConfig):
    """Thresholds of embedding_growth."""

    factor: float = 5.0
    """Growth of the layer's typical weight relative to that of the other matrices."""
    first_samples: int = 3
    """Sampled steps of which the lowest gives the ratio at the start."""


class EmbeddingGrowth(LastingRule[EmbeddingGrowthConfig]):
    """Embeddings and output layers that grow away."""

    name = "embedding_growth"
    config_class = EmbeddingGrowthConfig
    needs = frozenset({"weights"})
    forgets_after = frozenset({"resume", "restart"})

    def __init__(self, config: EmbeddingGrowthConfig) -> None:
        super().__init__(config)
        self._layers: Sequence[Layer] = ()
        self._watched: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._others: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._roots: NDArray[np.float64] = np.zeros(0)
        self._first: dict[int, list[float]] = {}
        self._curves: dict[int, Curve] = {}

    def observe(self, view: JobView) -> Finding | None:
        """A warning at every sampled step at which such a layer is far from the rest."""
        step = view.step
        found = step.layer_values("weight_norm") if step is not None and step.is_sampled else None
        if step is None or found is None:
            return None
        if view.layers is not self._layers:
            self._read_layers(view.layers)
        if not len(self._watched) or len(found) != len(self._roots):
            return None
        typical = np.where(found.is_finite, found.values, np.nan) / self._roots
        others = typical[self._others]
        others = others[others > 0]  # NaN is not
        if len(others) < NUM_OTHERS:
            return None
        middle = float(np.median(others))
        bad = {
            row: growth for row in self._watched.tolist() if (growth := self._growth(row, float(typical[row]) / middle))
        }
        if not bad:
            return self._resolved(step.step, "embedding and output layer are of the size of the others again")
        rows = sorted(bad, key=lambda row: -bad[row])
        names, first = [view.layers[row].name for row in rows], rows[0]
        return self._found(
            Severity.WARNING,
            step.step,
            f"{names[0]}{and_more(len(rows), 'layer')}: typical weight {typical[first]:.3g} against {middle:.3g} of the"
            f" other matrices, {amount(bad[first])}x the ratio at the start, and growing, {self._since(step.step)}",
            layers=tuple(names),
            values={"growth": bad[first], "weight": float(typical[first]), "others": middle},
        )

    def _growth(self, row: int, ratio: float) -> float:
        """How much the ratio of a layer has grown, where that is too much; else 0."""
        if not (np.isfinite(ratio) and ratio > 0):
            return 0.0
        first = self._first.setdefault(row, [])
        if len(first) < self.config.first_samples:
            first.append(ratio)
        curve = self._curves.setdefault(row, Curve())
        curve.add(float(np.log(ratio)))
        growth = float(ratio) / max(1.0, min(first))
        if growth < self.config.factor * (CALM if self.is_open else 1.0) or len(curve.means) < MIN_BUCKETS:
            return 0.0
        return growth if self.is_open or trend(curve.means[len(curve.means) // 2 :]).rises() else 0.0

    def _read_layers(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._roots = np.sqrt(np.maximum(1.0, [layer.numel for layer in layers]))
        embeddings = [row for row, layer in enumerate(layers) if _is_embedding(layer)]
        sizes = {layers[row].numel for row in embeddings}
        matrices = [row for row, layer in enumerate(layers) if _is_matrix(layer)]
        outputs = [row for row in matrices if layers[row].numel in sizes or _is_output(layers[row])]
        watched = {*embeddings, *outputs} if embeddings else set()
        self._watched = np.array(sorted(row for row in watched if layers[row].trainable), dtype=np.intp)
        self._others = np.array(
            [row for row in matrices if row not in watched and layers[row].trainable], dtype=np.intp
        )


def _is_embedding(layer: Layer) -> bool:
    return "embedding" in layer.kind.lower() and layer.name.endswith("weight")


def _is_output(layer: Layer) -> bool:
    return layer.name.rpartition(".")[0].rpartition(".")[2] in OUTPUTS


def _is_matrix(layer: Layer) -> bool:
    kind = layer.kind.lower()
    is_small = "norm" in kind or layer.name.endswith("bias")
    return not is_small and "embedding" not in kind and layer.name.endswith("weight")
