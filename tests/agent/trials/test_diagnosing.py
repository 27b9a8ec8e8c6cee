"""`diagnose_gradients`, `analyze_activations`, and what is unhealthy in a whole model at once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import caboose

LOSS = nn.CrossEntropyLoss()


def data(num: int = 32, width: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num, width, generator=generator), torch.randint(0, 4, (num,), generator=generator)


def stack(depth: int, activation: type[nn.Module], width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), activation()]
    return nn.Sequential(*layers, nn.Linear(width, 4))


def test_a_healthy_model_has_no_issues() -> None:
    found = caboose.diagnose_gradients(stack(3, nn.ReLU), LOSS, data())
    assert found.is_healthy, str(found)
    assert set(found.norms) == {name for name, _ in stack(3, nn.ReLU).named_parameters()}
    assert "healthy, as orientation: a total gradient norm of 0.1 to 10" in str(found)
    assert str(found).endswith("gradients look healthy")


def test_a_loader_and_several_batches_are_taken_too() -> None:
    inputs, targets = data(64)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=16)
    found = caboose.diagnose_gradients(stack(2, nn.ReLU), LOSS, loader, num_batches=3)
    assert found.num_batches == 3
    single = [caboose.diagnose_gradients(stack(2, nn.ReLU), LOSS, batch) for batch in list(loader)[:3]]
    expected = sum(each.norms["0.weight"] for each in single) / 3
    assert found.norms["0.weight"] == pytest.approx(expected)


def test_an_explosion_of_all_layers_is_found() -> None:
    found = caboose.diagnose_gradients(
        stack(3, nn.ReLU), lambda model, batch: 1e8 * LOSS(model(batch[0]), batch[1]), data()
    )
    assert [finding.kind for finding in found.inspection.findings] == ["exploding"]
    assert "0.1 to 10 is usual" in found.issues[0]
    assert {look.verdict for look in found.inspection.gradients} == {"large"}, "no layer stands out"


def test_weights_that_are_five_times_too_large_are_found() -> None:
    model = stack(10, nn.ReLU)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 5
    found = caboose.inspect(model, LOSS, data())
    assert [finding.kind for finding in found.findings] == ["exploding"]
    assert any("exploding" in suspect for suspect in found.suspects())


def test_a_recurrent_weight_that_explodes_is_marked() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.RNN(4, 8, batch_first=True, nonlinearity="relu")
            self.head = nn.Linear(8, 4)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.cell(inputs)[0][:, -1])  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Recurrent()
    with torch.no_grad():
        model.cell.weight_hh_l0.copy_(2.0 * torch.eye(8))
        model.cell.weight_hh_l0 += 0.1
        model.head.weight *= 1e-8
    batch = (torch.rand(16, 20, 4), data(16)[1])
    found = caboose.inspect(model, LOSS, batch)
    by_name = {look.name: look for look in found.gradients}
    assert by_name["head.weight"].norm > 100
    assert by_name["head.weight"].verdict == "exploding", str(found)


def test_a_gradient_that_fades_by_the_same_factor_in_each_layer_is_found() -> None:
    found = caboose.diagnose_gradients(stack(6, nn.Sigmoid), LOSS, data())
    assert [finding.kind for finding in found.inspection.findings] == ["fading"], str(found)
    assert "per layer" in found.issues[0]
    assert "ReLU" in found.issues[0]


def test_a_loss_that_is_scaled_to_nothing_is_found() -> None:
    found = caboose.diagnose_gradients(
        stack(2, nn.ReLU), lambda model, batch: 1e-8 * LOSS(model(batch[0]), batch[1]), data()
    )
    assert [finding.kind for finding in found.inspection.findings] == ["vanishing"]
    assert "scaled down" in found.issues[0]


def test_activations_need_no_loss() -> None:
    model = stack(3, nn.ReLU)
    with torch.no_grad():
        model[2].bias -= 2.0  # type: ignore[operator]
    before = [parameter.clone() for parameter in model.parameters()]
    found = caboose.analyze_activations(model, data())
    assert not found.is_healthy
    assert any(issue.startswith("3: dead") for issue in found.issues), str(found)
    assert "LeakyReLU" in str(found)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_42_percent_of_dead_units_are_reported() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 100), nn.ReLU(), nn.Linear(100, 4))
    with torch.no_grad():
        model[0].bias[:42] = -100.0  # type: ignore[index]
    assert [issue.split(",")[0] for issue in caboose.analyze_activations(model, data()).issues] == ["1: dead"]


class OfNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = stack(2, nn.ReLU)

    def forward(self, input_values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.body(input_values * scale)  # type: ignore[no-any-return]


LOSSES: dict[str, Any] = {
    "a criterion": LOSS,
    "of model and batch": lambda model, batch: LOSS(model(batch[0]), batch[1]),
    "of outputs and targets": lambda outputs, targets: LOSS(outputs, targets),
    "of model and batch, without names": lambda a, b: LOSS(a(b[0]), b[1]),
    "of outputs and targets, without names": lambda a, b: LOSS(a, b),
}


@pytest.mark.parametrize("way", LOSSES)
def test_any_form_of_the_loss_is_found_out(way: str) -> None:
    found = caboose.diagnose_gradients(stack(2, nn.ReLU), LOSSES[way], data())
    assert found.norms == caboose.diagnose_gradients(stack(2, nn.ReLU), LOSS, data()).norms
    assert caboose.hunt_nan(stack(2, nn.ReLU), LOSSES[way], data()).summary.endswith("no bad number came up again")


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda a, b: "no number", r"<lambda> fits neither \(model, batch\): it returned str"),
        (lambda a, b: LOSS(a, b)[:, None, None], r"nor \(outputs, targets\)"),
        (lambda a: a, r"<lambda>\(a\) does not take two arguments; give a criterion, a function of"),
        (lambda m, x, y: m, r"<lambda>\(m, x, y\) does not take two arguments"),
        (3, "got int; give a criterion"),
    ],
)
def test_a_loss_that_fits_in_no_way_is_a_clear_error(loss: Any, says: str) -> None:
    with pytest.raises(TypeError, match=rf"diagnose_gradients\(loss\): .*{says}"):
        caboose.diagnose_gradients(stack(2, nn.ReLU), loss, data())


def test_a_criterion_for_a_batch_without_targets_is_a_clear_error() -> None:
    with pytest.raises(TypeError, match=r"CrossEntropyLoss is a criterion and needs batches of \(inputs, targets\)"):
        caboose.diagnose_gradients(stack(2, nn.ReLU), LOSS, data()[0])


def test_inputs_with_names_are_passed_by_name() -> None:
    inputs, labels = data()
    batch = {"input_values": inputs, "scale": torch.ones(1), "labels": labels}
    assert caboose.diagnose_gradients(OfNames(), LOSS, batch).is_healthy
    assert caboose.analyze_activations(OfNames(), batch).is_healthy


@pytest.mark.parametrize("ending", ["png", "svg", "html"])
def test_plots_are_written(tmp_path: Path, ending: str) -> None:
    model, start = stack(3, nn.ReLU), {"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doct"}[ending]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = {
        "gradients": caboose.diagnose_gradients(model, LOSS, data()),
        "activations": caboose.analyze_activations(model, data()),
        "lr": caboose.find_lr(model, LOSS, [data()], optimizer, num_steps=20),
        "sharp": caboose.sharpness(model, LOSS, data(), num_iterations=2),
        "one": caboose.overfit_one_batch(model, LOSS, data(), optimizer, num_steps=5),
    }
    for name, found in made.items():
        path = tmp_path / f"{name}.{ending}"
        found.plot(path)  # type: ignore[attr-defined]
        assert path.read_bytes()[:6].lower().startswith(start.lower()), name
        assert path.stat().st_size > 4000


def test_a_plot_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    found = caboose.diagnose_gradients(stack(1, nn.ReLU), LOSS, data())
    with pytest.raises(ValueError, match=r"lr\.jpg: give a name that ends in \.png, \.svg or \.html"):
        found.plot(tmp_path / "lr.jpg")
    with pytest.raises(ValueError, match="there is no folder"):
        found.plot(tmp_path / "nowhere" / "lr.png")


def test_hunt_nan_needs_no_monitor() -> None:
    inputs, targets = data()
    inputs[3, 2] = float("nan")
    found = caboose.hunt_nan(stack(2, nn.ReLU), LOSS, (inputs, targets))
    assert (found.where, found.samples) == ("input", (3,))
    found = caboose.hunt_nan(stack(2, nn.ReLU), lambda outputs, targets: (outputs.sum() * 0).log() * 0, data())
    assert (found.where, found.operation) == ("loss", "log")


def test_validate_batch() -> None:
    inputs, targets = data()
    assert caboose.validate_batch((inputs, targets), num_classes=4)
    assert caboose.validate_batch(inputs, targets).is_ok
    bad = inputs.clone()
    bad[0, 0], bad[1, 1], bad[2, 2] = float("nan"), float("inf"), 150.0
    found = caboose.validate_batch({"pixels": bad, "labels": targets + 3}, num_classes=4)
    assert len(found.problems) == 3
    assert found.problems[0] == "pixels: 1 NaN and 1 infinite of 512"
    assert "150, beyond 100" in found.problems[1]
    assert "labels outside 0 to 3" in found.problems[2]
    with pytest.raises(ValueError, match="1 NaN and 1 infinite"):
        caboose.validate_batch(bad, targets, raise_errors=True)
    assert "different numbers of samples: 31, 32" in str(caboose.validate_batch(inputs, targets[:31]))
