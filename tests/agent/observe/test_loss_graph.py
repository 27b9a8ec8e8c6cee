"""What the loss's autograd graph shows: kind, classes, targets, and mistakes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import caboose
from caboose.observe.loss_graph import LossGraph
from caboose.observe.step_vector import StepVector
from caboose_wire import Hello, StepReport
from support.collector import Collector

INPUTS, LABELS = torch.randn(8, 6), torch.tensor([0, 1, 2, 2, 2, 2, 2, 1])
HEAD = nn.Linear(6, 3)


def read(loss: Tensor) -> tuple[dict[str, Any], dict[str, float]]:
    graph, vector = LossGraph(), StepVector()
    graph.read((loss,), vector)
    packed = vector.pack()
    values = {} if packed is None else {name: float(found[1][0]) for name, found in packed.read().items()}
    return graph.facts, values


def test_the_classes_are_those_of_the_head() -> None:
    facts, values = read(F.cross_entropy(HEAD(INPUTS), LABELS))

    assert facts == {"loss_kind": "cross_entropy", "num_classes": 3}
    assert values == {"target_share": pytest.approx(5 / 8)}


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_label_smoothing_is_read_from_the_sum_of_its_two_terms(scale: float) -> None:
    facts, _ = read(F.cross_entropy(HEAD(INPUTS), LABELS, label_smoothing=0.1) * scale)
    assert facts["label_smoothing"] == pytest.approx(0.1)
    assert "label_smoothing" not in read(F.cross_entropy(HEAD(INPUTS), LABELS) * scale)[0]


def test_tokens_have_classes_and_padding_has_none() -> None:
    labels = torch.tensor([[0, 0, -100, -100], [0, 1, -100, -100]])
    facts, values = read(F.cross_entropy(HEAD(torch.randn(2, 4, 6)).transpose(1, 2), labels))

    assert facts["num_classes"] == 3
    assert values["target_share"] == pytest.approx(3 / 4)


def test_candidates_of_a_batch_are_no_classes() -> None:
    first, second = (F.normalize(HEAD(torch.randn(8, 6)), dim=-1) for _ in "ab")
    facts, _ = read(F.cross_entropy(first @ second.T / 0.2, torch.arange(8)))

    assert facts == {"loss_kind": "cross_entropy", "loss_of_pairs": True}


@pytest.mark.parametrize(
    ("loss", "mistake"),
    [
        (lambda: F.cross_entropy(HEAD(INPUTS).softmax(-1), LABELS), "softmax_twice"),
        (lambda: F.cross_entropy(nn.Softmax(dim=1)(HEAD(INPUTS)).view(8, 3), LABELS) / 4, "softmax_twice"),
        (lambda: F.nll_loss(HEAD(INPUTS).softmax(-1), LABELS), "no_log"),
        (lambda: F.nll_loss(HEAD(INPUTS).log_softmax(0), LABELS), "over_batch"),
        (lambda: F.nll_loss((HEAD(INPUTS) @ HEAD(INPUTS).T).log_softmax(0), torch.arange(8)), None),
        (lambda: -F.cross_entropy(HEAD(INPUTS), LABELS), "negated"),
        (lambda: F.cross_entropy(HEAD(INPUTS), LABELS) * -1.0, "negated"),
        (lambda: F.binary_cross_entropy_with_logits(HEAD(INPUTS).sigmoid(), torch.rand(8, 3)), "softmax_twice"),
        (lambda: F.cross_entropy(HEAD(INPUTS), LABELS), None),
        (lambda: F.nll_loss(HEAD(INPUTS).log_softmax(-1), LABELS), None),
        (lambda: 1024.0 * F.cross_entropy(HEAD(INPUTS), LABELS) / 4, None),
        (lambda: F.binary_cross_entropy_with_logits(HEAD(INPUTS), torch.rand(8, 3)), None),
    ],
)
def test_mistakes_show_in_the_graph(loss: Callable[[], Tensor], mistake: str | None) -> None:
    facts, _ = read(loss())

    assert facts.get("loss_mistake") == mistake


def test_real_targets_have_a_variance_at_each_place_and_may_be_bad() -> None:
    targets = torch.tensor([[0.0, 10.0, 5.0], [2.0, 10.0, 5.0]])
    facts, values = read(F.mse_loss(HEAD(torch.randn(2, 6)), targets))
    assert facts == {"loss_kind": "squared_error"}
    assert values == {"target_bad": 0.0, "target_variance": pytest.approx(1 / 3)}

    targets[0, 1] = float("nan")
    assert read(F.mse_loss(HEAD(torch.randn(2, 6)), targets))[1]["target_bad"] == 1.0


def test_of_several_terms_only_the_kinds_are_known() -> None:
    logits = HEAD(INPUTS)
    facts, values = read(F.cross_entropy(logits, LABELS) + F.mse_loss(logits, torch.zeros(8, 3)))

    assert facts == {"loss_kind": "cross_entropy, squared_error"}
    assert not values


def test_a_checkpointed_loss_still_has_its_backward() -> None:
    loss = torch.utils.checkpoint.checkpoint(
        lambda x: F.cross_entropy(HEAD(x).softmax(-1), LABELS), INPUTS.clone().requires_grad_(), use_reentrant=False
    )

    facts, values = read(loss)
    loss.backward()

    assert facts["loss_mistake"] == "softmax_twice"
    assert not values, "its saved tensors are computed again, and only once"
    assert HEAD.weight.grad is not None


def test_gradients_are_those_of_an_unread_loss() -> None:
    gradients = []
    for is_read in (False, True):
        HEAD.zero_grad()
        loss = F.cross_entropy(HEAD(INPUTS), LABELS)
        if is_read:
            read(loss)
        loss.backward()
        assert HEAD.weight.grad is not None
        gradients.append(HEAD.weight.grad.clone())

    assert torch.equal(*gradients)


def test_a_sampled_step_reports_them_whatever_loss_it_is_given(
    attach: Callable[..., caboose.Monitor], listening: Collector
) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Softmax(dim=-1))
    monitor = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), endpoint=listening.endpoint, sampling=1)
    loss = F.cross_entropy(model(INPUTS), LABELS)
    loss.backward()
    monitor.step(loss.item())

    batch = listening.wait_for(StepReport)[0].batch
    assert batch is not None
    assert (batch.index, batch.shape, batch.commonest_share) == (None, (8, 6), pytest.approx(5 / 8))
    facts = listening.wait_for(Hello)[-1].facts
    assert (facts["loss_kind"], facts["loss_mistake"], facts["num_classes"]) == ("cross_entropy", "softmax_twice", 3)
