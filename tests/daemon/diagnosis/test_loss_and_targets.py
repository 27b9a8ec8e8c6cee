"""Causes that the loss's graph and its targets show, and evidence that counts only at its time."""

from typing import Any

import numpy as np

from caboose_daemon.diagnosis.sample_history import InputRange, TargetSample
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.rules.parts.finding import Severity
from caboose_wire import Layer
from support.cases import a_case, a_finding, a_group, a_validation

SEEN = frozenset({"gradients", "activations", "updates"})
PLAIN = {"num_classes": 4, "loss_kind": "cross_entropy"}


def best(*findings: Any, **changes: Any) -> str | None:
    found = diagnose(a_case(*findings, **changes)).best
    return None if found is None else found.id


def scattered(level: float, num: int = 400, scatter: float = 0.05) -> np.ndarray[Any, Any]:
    return level * np.exp(scatter * np.random.default_rng(1).standard_normal(num))


def targets(loss: float, blind: float | None = None, commonest: float | None = None) -> list[TargetSample]:
    return [TargetSample(1, step, loss, blind, commonest) for step in range(20, 420, 20)]


def test_a_mistake_in_the_loss_comes_first_whatever_broke() -> None:
    breaks = a_finding("divergence", 200, severity=Severity.CRITICAL)
    below = {"loss": np.linspace(-1.0, -900.0, 400)}

    assert best(breaks, facts={"loss_mistake": "negated"}, curves=below, visible=SEEN) == "wrong_loss"
    away = a_finding("divergence", 1, severity=Severity.CRITICAL, values={"runs_away": 1.0})
    assert best(away, curves=below, visible=SEEN) == "wrong_loss", "of the user's own, whose graph is not known"
    flat = a_finding("plateau", 300)
    assert best(flat, facts={**PLAIN, "loss_mistake": "softmax_twice"}, visible=SEEN) == "softmax_twice"


def test_real_targets_of_which_nothing_is_explained_do_not_match() -> None:
    stuck = a_finding("plateau", 300, values={"start": 1.3})
    curves = {"loss": scattered(1.0), "grad_norm": scattered(0.2)}
    at_variance = {"curves": curves, "groups": [a_group("AdamW", lr=1e-3)], "visible": SEEN}

    assert best(stuck, targets=targets(1.0, blind=1.0), **at_variance) == "labels_shuffled"
    assert best(stuck, targets=targets(0.4, blind=1.0), **at_variance) != "labels_shuffled"


def test_one_class_in_nearly_all_targets_explains_a_validation_that_is_apart() -> None:
    apart = a_finding("metric_divergence", 100, values={"apart": 1.0, "loss": 2.0})
    given = {"facts": PLAIN, "curves": {"loss": scattered(0.1)}, "events": [a_validation(100, 2.0, accuracy=0.25)]}

    assert best(apart, targets=targets(0.1, commonest=0.97), visible=SEEN, **given) == "class_imbalance"
    assert best(apart, targets=targets(0.1, commonest=0.3), visible=SEEN, **given) != "class_imbalance"


def test_a_batch_of_two_is_known_from_nothing_but_equal_means_of_the_inputs() -> None:
    flat = a_finding("plateau", 300)
    limits = [InputRange(1, step, -0.42421296, 2.8214867, 0.1 + 0.001 * step) for step in range(20, 220, 20)]
    same = [InputRange(1, step, -0.42421296, 2.8214867, 0.131) for step in range(20, 220, 20)]

    assert best(flat, input_ranges=limits, visible=SEEN) != "constant_input", "every normalised image has such limits"
    assert best(flat, input_ranges=same, visible=SEEN) == "constant_input"


def test_swings_after_the_data_changed_are_no_evidence_of_the_learning_rate() -> None:
    losses = np.concatenate([scattered(0.5, 200), scattered(1.39, 300)])
    spike = a_finding("loss_spike", 200, severity=Severity.CRITICAL)
    swings = a_finding("oscillation", 300, values={"amplitude": 0.4, "correlation": -0.5})
    given = {"curves": {"loss": losses, "lr": np.full(500, 1e-3)}, "facts": {"num_classes": 4}, "visible": SEEN}

    assert best(spike, swings, **given) == "data_changed"
    earlier = a_finding("oscillation", 100, values={"amplitude": 0.4, "correlation": -0.5})
    assert best(earlier, spike, **given) == "lr_too_high"


def test_no_trained_parameter_in_the_optimizer_is_no_cut_graph() -> None:
    stuck = a_finding("not_learning", 1)
    layers = [Layer("0.weight", 400, "Linear", held=False), Layer("0.bias", 4, "Linear", held=False)]
    given = {"curves": {"loss": scattered(1.39), "grad_norm": np.full(400, np.nan)}, "layers": layers, "visible": SEEN}

    assert best(stuck, **given) == "parameters_unregistered"


def test_a_validation_that_was_never_good_differs_where_training_learned_at_once() -> None:
    over = a_finding("overfitting", 40, values={"best": 1.5, "validation_loss": 2.6})
    events = [a_validation(step, 1.5 + step / 400, accuracy=0.2) for step in range(40, 400, 40)]
    quick = 0.3 + 1.1 * np.exp(-np.arange(400) / 20)
    late = 0.3 + 1.1 / (1.0 + np.exp((np.arange(400) - 250) / 30))
    given = {"facts": {"num_classes": 4}, "events": events, "visible": SEEN}

    assert best(over, curves={"loss": quick}, **given) == "validation_shift"
    assert best(over, curves={"loss": late}, **given) == "labels_shuffled"


def test_an_input_that_is_finite_leaves_the_real_targets() -> None:
    values = {"bad_inputs": 0.0, "loss_is_infinite": 0.0, "was_looked_into": 1.0}
    bad = a_finding("non_finite", 200, phase="forward", values=values, severity=Severity.CRITICAL)

    assert best(bad, facts={"loss_kind": "squared_error"}, curves={"loss": scattered(1.0, 199)}) == "input_not_finite"
    assert best(bad, facts={"loss_kind": "cross_entropy"}, curves={"loss": scattered(1.0, 199)}) == "log_of_zero"


def test_a_jump_of_the_norm_in_one_step_that_heals_is_a_batch() -> None:
    losses = np.concatenate([scattered(0.5, 150), [200.0] * 2, 0.5 + 6.0 * np.exp(-np.arange(198) / 50)])
    norms = np.concatenate([scattered(0.3, 150), 0.3 + 700.0 * np.exp(-np.arange(200) / 8)])
    explodes = a_finding("gradient_explosion", 150, step=180, values={"level": 0.3, "peak": 700.0})
    spike = a_finding("loss_spike", 150, step=220, severity=Severity.CRITICAL)

    assert best(explodes, spike, curves={"loss": losses, "grad_norm": norms}, visible=SEEN) == "outlier_batch"


def test_one_rank_alone_that_jumps_for_several_steps_has_other_data_though_its_peers_soon_suffer() -> None:
    calm, after = scattered(0.01, 150), 0.01 + 0.5 * np.exp(-np.arange(150) / 40)
    low = np.concatenate([calm, [0.01] * 4, after])
    high = np.concatenate([1.3 * calm, [5.0, 4.0, 3.0, 2.0], 1.3 * after])
    given = {"curves": {"loss": (low + high) / 2, "loss_min": low, "loss_max": high}, "world": 2, "visible": SEEN}

    assert best(a_finding("loss_spike", 151, step=300, severity=Severity.CRITICAL), **given) == "bad_shard"
