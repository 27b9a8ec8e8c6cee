"""A batch is learned by heart, or it is said whether model or optimizer is in the way."""

from typing import Any

import pytest
import torch

import caboose


def a_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 8, generator=generator), torch.randint(0, 3, (16,), generator=generator)


def a_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))


LOSS = torch.nn.CrossEntropyLoss()


def test_a_sound_model_learns_it() -> None:
    model = a_model()
    found = caboose.overfit_one_batch(model, LOSS, [a_batch()], torch.optim.Adam(model.parameters(), lr=0.01))
    assert found.verdict == "pass"
    assert found.gone > 0.9
    assert found.reference == (), "nothing else was needed"
    assert len(found.plot().data) == 1


def test_a_rate_that_is_too_small_is_told_from_a_model_that_cannot_learn() -> None:
    model = a_model()
    found = caboose.overfit_one_batch(
        model, LOSS, [a_batch()], torch.optim.SGD(model.parameters(), lr=1e-6), num_steps=300
    )
    assert found.verdict == "warn"
    assert "where a plain AdamW reaches" in found.says
    assert "optimizer's learning rate" in found.fix
    assert len(found.plot().data) == 2


def test_a_loss_that_still_falls_is_given_more_steps() -> None:
    model = a_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = caboose.overfit_one_batch(model, LOSS, [a_batch()], optimizer, num_steps=16)
    assert found.verdict == "pass"
    assert 16 < len(found.losses) <= 48


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("mean", [50.0, 1e5])
def test_targets_that_are_far_away_take_long_and_are_no_failure(mean: float) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1), torch.nn.Flatten(0))
    inputs = a_batch()[0]
    batch = (inputs, mean + inputs[:, 0])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    found = caboose.overfit_one_batch(model, torch.nn.L1Loss(), [batch], optimizer)
    assert len(found.losses) == 300, "while it falls, it goes on"
    assert found.verdict == "warn"
    assert "in 300 steps" in found.says
    assert found.says.endswith("and still falling")
    assert "targets that are far from zero" in found.fix


def test_a_small_rate_does_not_hide_that_nothing_can_be_learned() -> None:
    model = a_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    found = caboose.overfit_one_batch(model, lambda m, b: LOSS(m(b[0] * 0), b[1]), [a_batch()], optimizer)
    assert found.verdict == "fail"
    assert "a plain AdamW gets to" in found.says, "it settles, which shows where this ends"


@pytest.mark.parametrize("lr", [0.5, 1e-6])
def test_sparse_embeddings_are_learned_too(lr: float) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(64, 16, sparse=True), torch.nn.Linear(16, 3))
    batch = (torch.arange(64).view(16, 4), a_batch()[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    found = caboose.overfit_one_batch(model, LOSS, [batch], optimizer, num_steps=300)
    assert found.verdict == ("pass" if lr == 0.5 else "warn"), str(found)
    assert ("where a plain AdamW reaches" in found.says) is (lr == 1e-6)


def test_what_raises_in_the_reference_alone_is_no_verdict() -> None:
    model = a_model()
    calls = iter(range(120))

    def count(*_: Any) -> None:
        if next(calls, None) is None:
            raise RuntimeError("this many steps were never meant")

    model[0].register_forward_hook(count)

    def strict(model: Any, batch: Any) -> torch.Tensor:
        return LOSS(model(batch[0] * 0), batch[1])  # type: ignore[no-any-return]

    found = caboose.overfit_one_batch(model, strict, [a_batch()], torch.optim.Adam(model.parameters(), lr=0.01))
    assert (found.verdict, found.reference) == ("fail", ())
    assert "in 100 steps, not below" in found.says


def test_a_model_that_does_not_see_its_input_fails() -> None:
    model = a_model()

    def blind(model: Any, batch: Any) -> torch.Tensor:
        return LOSS(model(torch.zeros_like(batch[0])), batch[1])  # type: ignore[no-any-return]

    found = caboose.overfit_one_batch(model, blind, [a_batch()], torch.optim.Adam(model.parameters(), lr=0.01))
    assert found.verdict == "fail"
    assert "targets that do not belong to the inputs" in found.fix


def test_a_loss_that_becomes_nan_fails() -> None:
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e30)
    found = caboose.overfit_one_batch(model, torch.nn.MSELoss(), [(a_batch()[0], torch.ones(16, 3))], optimizer)
    assert found.verdict != "pass"
    assert "the loss was" in found.says


def test_a_warm_up_is_taken_to_its_end() -> None:
    model = a_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 1000)
    assert optimizer.param_groups[0]["lr"] == 0.0
    found = caboose.overfit_one_batch(model, LOSS, [a_batch()], optimizer)
    assert found.verdict == "pass"
    assert optimizer.param_groups[0]["lr"] == 0.0


def test_a_cycle_is_taken_to_its_top() -> None:
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, 1e-6, 0.1)
    report = caboose.preflight(model, LOSS, [a_batch()], optimizer, scheduler=scheduler, only="overfits")
    assert report["overfits"].grade == "pass", str(report)
    assert optimizer.param_groups[0]["lr"] == 1e-6


def test_a_loss_that_is_no_number_is_named() -> None:
    model = a_model()
    each = torch.nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(TypeError, match=r"a tensor of shape \(16,\); return one number, as loss.mean\(\)"):
        caboose.overfit_one_batch(model, each, [a_batch()], torch.optim.SGD(model.parameters(), lr=0.1))


def test_the_mean_of_the_targets_is_no_learned_batch() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    inputs = a_batch()[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    batch = (inputs * 0, 100 + inputs[:, :1])
    found = caboose.overfit_one_batch(model, torch.nn.MSELoss(), [batch], optimizer)
    assert found.gone > 0.7, "almost all of the loss is the targets' mean"
    assert found.verdict != "pass"
    assert found.bounds is not None
    assert found.bounds.constant == pytest.approx(float(inputs[:, 0].var(unbiased=False)), rel=1e-3)
    assert found.bounds.lowest == pytest.approx(0, abs=1e-4)


def test_a_model_that_is_too_small_for_random_labels_does_not_pass() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    batch = (torch.randn(32, 8, generator=generator), torch.randint(0, 3, (32,), generator=generator))
    model = torch.nn.Linear(8, 3)
    with torch.no_grad():
        model.weight *= 8
    found = caboose.overfit_one_batch(model, LOSS, [batch], torch.optim.Adam(model.parameters(), lr=0.1))
    assert found.gone > 0.6
    assert found.verdict != "pass", str(found)
    assert found.bounds is not None
    assert found.bounds.constant < 1.1, "the frequencies of the labels"


@pytest.mark.parametrize(
    "loss",
    [
        torch.nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1),
        lambda outputs, targets: torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1),
    ],
    ids=["criterion", "of model and batch", "of outputs and targets"],
)
def test_what_label_smoothing_leaves_is_no_fault_of_the_model(loss: Any) -> None:
    model = a_model()
    found = caboose.overfit_one_batch(model, loss, [a_batch()], torch.optim.Adam(model.parameters(), lr=0.03))
    assert found.verdict == "pass", str(found)
    assert found.bounds is not None
    assert found.bounds.lowest == pytest.approx(0.2911, abs=1e-3)


def test_a_target_loss_is_reached_or_not() -> None:
    model = a_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = caboose.overfit_one_batch(model, LOSS, [a_batch()], optimizer, num_steps=300, target_loss=0.01)
    assert found.verdict == "pass"
    assert found.losses[-1] < 0.02
    short = caboose.overfit_one_batch(model, LOSS, [a_batch()], optimizer, num_steps=3, target_loss=0.01)
    assert short.verdict != "pass"
    assert "above the target 0.01" in short.says
    with pytest.raises(ValueError, match=r"target_loss=nan\): give a finite number"):
        caboose.overfit_one_batch(model, LOSS, [a_batch()], optimizer, target_loss=float("nan"))
