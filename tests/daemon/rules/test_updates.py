"""The typical update-to-weight ratio: the median over the weight matrices, where somebody looked."""

from collections.abc import Sequence

import pytest

from caboose_daemon.rules.parts.updates import MIN_ELEMENTS, Updates
from caboose_wire import Layer
from support.curves import views


def matrix(name: str = "blocks.0.weight", numel: int = 4096, kind: str = "Linear", **changes: bool) -> Layer:
    return Layer(name=name, numel=numel, kind=kind, **changes)


def update(layers: Sequence[Layer], *ratios: float) -> float | None:
    (view,) = views([1.0], updates={0: ratios}, layers=tuple(layers))
    return Updates().typical(view)


def test_is_the_median_over_the_matrices() -> None:
    assert update([matrix()] * 3, 0.001, 0.002, 5.0) == pytest.approx(0.002)


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(matrix("blocks.0.bias", 512), id="bias"),
        pytest.param(matrix("norm.weight", 512, "LayerNorm"), id="norm"),
        pytest.param(matrix("bn.weight", 512, "BatchNorm2d"), id="batch norm"),
        pytest.param(matrix("mix", MIN_ELEMENTS - 1), id="small"),
        pytest.param(matrix("frozen", trainable=False), id="frozen"),
    ],
)
def test_what_is_no_weight_matrix_is_left_out(layer: Layer) -> None:
    assert update([matrix(), layer], 0.001, 5.0) == pytest.approx(0.001)
    assert update([layer], 5.0) is None


@pytest.mark.parametrize("unseen", [-1.0, -2.0])
def test_a_matrix_that_nobody_looked_at_is_left_out(unseen: float) -> None:
    assert update([matrix(), matrix()], unseen, 0.001) == pytest.approx(0.001)
    assert update([matrix()], unseen) is None


def test_a_step_that_was_not_sampled_has_none() -> None:
    (view,) = views([1.0], [1.0])

    assert Updates().typical(view) is None


def test_a_matrix_that_did_not_move_counts() -> None:
    assert update([matrix()], 0.0) == 0.0
