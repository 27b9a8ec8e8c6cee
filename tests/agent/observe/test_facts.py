"""What the Hello states about how a model was made: recurrent weights, and frozen ones that nothing has trained."""

import pytest
import torch
from torch import nn

from caboose.observe import facts


def of(model: nn.Module) -> dict[str, object]:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    return dict(facts.gather(model, [optimizer], schedulers=[], scaler=None))


def frozen(*layers: nn.Module) -> nn.Sequential:
    model = nn.Sequential(*layers, nn.Linear(8, 2))
    for layer in layers:
        layer.requires_grad_(requires_grad=False)
    return model


@pytest.mark.parametrize(
    ("kind", "factor", "expected"), [(nn.LSTM, 1.0, 0.58), (nn.GRU, 1.0, 0.58), (nn.RNN, 10.0, 5.8)]
)
def test_recurrent_weights_are_told_by_what_they_do_to_a_state(
    kind: type[nn.RNN], factor: float, expected: float
) -> None:
    torch.manual_seed(0)
    model = kind(16, 64, num_layers=2)
    with torch.no_grad():
        model.weight_hh_l1.mul_(factor)

    assert of(nn.Sequential(model))["init_recurrent"] == pytest.approx(expected, rel=0.05)


def test_a_model_without_recurrence_or_frozen_weights_has_neither_fact() -> None:
    assert not {"init_recurrent", "frozen_at_random"} & of(nn.Sequential(nn.Linear(32, 32))).keys()


def test_a_fixed_filter_is_no_initial_weight() -> None:
    """Detectors read a distribution with a frozen convolution of 0, 1, ..., 15; a frozen net may have any weights."""
    filter_, recurrent = nn.Conv2d(16, 1, 1, bias=False), nn.LSTM(16, 16)
    with torch.no_grad():
        filter_.weight.copy_(torch.arange(16.0).view(1, 16, 1, 1))
        recurrent.weight_hh_l0.mul_(100.0)

    found = of(frozen(filter_, recurrent))

    assert found["init_he_max"] == pytest.approx(0.41, rel=0.3), "of the linear layer alone"
    assert "init_recurrent" not in found


@pytest.mark.parametrize("layer", [nn.Linear(32, 64), nn.Conv2d(8, 16, 3)])
def test_frozen_weights_as_torch_draws_them_are_counted(layer: nn.Module) -> None:
    assert of(frozen(layer))["frozen_at_random"] == layer.weight.numel()  # type: ignore[union-attr, operator]  # a weight


@pytest.mark.parametrize("layer", [nn.LSTM(12, 32), nn.GRUCell(12, 32)])
def test_frozen_recurrent_weights_as_torch_draws_them_are_counted(layer: nn.Module) -> None:
    weights = [p for p in layer.parameters() if p.dim() > 1]
    assert of(frozen(layer))["frozen_at_random"] == sum(p.numel() for p in weights)
    with torch.no_grad():
        for weight in weights:
            weight.mul_(1.3)
    assert "frozen_at_random" not in of(frozen(layer))


def test_frozen_weights_that_were_trained_or_drawn_otherwise_are_not() -> None:
    torch.manual_seed(0)
    trained, normal, small = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(4, 4)
    with torch.no_grad():
        trained.weight.add_(0.02 * torch.randn_like(trained.weight))
        normal.weight.normal_(0.0, 0.1)

    assert "frozen_at_random" not in of(frozen(trained, normal, small, nn.Embedding(40, 32)))


def test_weights_in_no_optimizer_that_nothing_has_trained_are_counted() -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(32, 64), nn.Linear(64, 32)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)

    found = facts.gather(nn.Sequential(body, head), [optimizer], schedulers=[], scaler=None)

    assert (found["unheld_at_random"], "frozen_at_random" in found) == (body.weight.numel(), False)


@pytest.mark.parametrize(
    ("model", "num"),
    [
        (nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 3)), 2),
        (nn.Sequential(nn.Sequential(nn.Linear(4, 16)), nn.Sequential(nn.Identity(), nn.Linear(16, 3))), 1),
        (nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), 0),
        (nn.Sequential(nn.Linear(64, 4), nn.Linear(4, 64)), 0),
        (nn.ModuleList([nn.Linear(4, 16), nn.Linear(16, 3)]), 0),
        (nn.Linear(4, 2), 0),
    ],
    ids=["in a row", "across containers", "with an activation", "a factor on purpose", "no sequence", "alone"],
)
def test_linear_layers_in_a_row_are_counted(model: nn.Module, num: int) -> None:
    assert of(model).get("linear_pairs", 0) == num
