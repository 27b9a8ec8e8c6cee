"""The numbers of one step over all ranks: means, norms, and what NaN and absence become."""

import math
from typing import Any

import numpy as np
import pytest

from caboose_daemon.steps import reduce_ranks
from caboose_daemon.steps.aligned import AlignedStep, combine
from caboose_daemon.steps.columns import summarize
from caboose_daemon.steps.masked import LayerValues
from caboose_daemon.steps.reduce_ranks import are_apart, by_place, merge
from caboose_wire import Batch, Layer, Mode, Phases, Scaler, StepReport
from support.ranks import a_report

NAN, INF = float("nan"), float("inf")
PARTS = (0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05)


def layers(*placements: str) -> tuple[Layer, ...]:
    return tuple(
        Layer(name=f"layer{i}", numel=10, placement=placement)  # type: ignore[arg-type]  # a literal, by construction
        for i, placement in enumerate(placements)
    )


def combined(*reports: StepReport, placements: tuple[str, ...] = ("replicated",) * 2, **more: Any) -> AlignedStep:
    arguments = {"attempt": 1, "step": 1, "world": len(reports), "layers": layers(*placements), **more}
    return combine(dict(enumerate(reports)), **arguments)


def norms(*values: float, **changes: Any) -> StepReport:
    return a_report(arrays={"grad_norm": np.array(values, dtype=np.float32)}, **changes)


def shown(found: LayerValues) -> list[float | str]:
    """Each layer's value, or why there is none."""
    rows = zip(found.values.tolist(), found.has.tolist(), found.is_absent.tolist(), strict=True)
    return [value if has else "absent" if is_absent else "unseen" for value, has, is_absent in rows]


# Loss


def test_the_loss_is_the_mean_over_ranks() -> None:
    assert combined(norms(loss=1.0), norms(loss=2.0), norms(loss=6.0)).mean_loss == pytest.approx(3.0)


def test_the_loss_is_weighted_by_samples() -> None:
    step = combined(norms(loss=1.0, num_samples=30), norms(loss=5.0, num_samples=10))

    assert step.mean_loss == pytest.approx(2.0)


def test_a_rank_without_samples_does_not_count() -> None:
    assert combined(norms(loss=1.0, num_samples=8), norms(loss=99.0, num_samples=0)).mean_loss == pytest.approx(1.0)


def test_without_any_samples_all_ranks_count_the_same() -> None:
    assert combined(norms(loss=1.0, num_samples=0), norms(loss=3.0, num_samples=0)).mean_loss == pytest.approx(2.0)


def test_a_rank_that_reports_no_loss_does_not_count() -> None:
    step = combined(norms(loss=None), norms(loss=4.0))

    assert step.mean_loss == pytest.approx(4.0)
    assert step.has_loss.tolist() == [False, True]
    assert step.bad_loss_ranks == ()


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_loss_that_is_not_finite_passes_and_names_its_rank(value: float) -> None:
    step = combined(norms(loss=1.0), norms(loss=value, num_samples=0), norms(loss=2.0))

    assert step.mean_loss is not None
    assert not math.isfinite(step.mean_loss)
    assert step.bad_loss_ranks == (1,)


def test_losses_too_large_to_add_are_infinite_and_raise_nothing() -> None:
    assert combined(norms(loss=1.7e308), norms(loss=1.7e308)).mean_loss == INF


# Gradients of replicated layers


def test_a_replicated_layer_counts_once_however_many_ranks_report_it() -> None:
    step = combined(norms(3.0, 4.0), norms(3.0, 4.0), norms(3.0, 4.0))

    assert shown(step.layer_grad_norm) == [3.0, 4.0]
    assert step.grad_norm == pytest.approx(5.0)


def test_when_replicas_disagree_the_largest_is_shown() -> None:
    assert shown(combined(norms(3.0, 4.0), norms(3.5, 4.0)).layer_grad_norm) == [3.5, 4.0]


def test_ranks_may_divide_the_layers_among_them() -> None:
    even = norms(1.0, 3.0, slices={"grad_norm": (0, 2)})
    odd = norms(2.0, slices={"grad_norm": (1, 2)})

    step = combined(even, odd, placements=("replicated",) * 3)

    assert shown(step.layer_grad_norm) == [1.0, 2.0, 3.0]
    assert step.grad_norm == pytest.approx(math.sqrt(14))


def test_a_slice_nobody_reported_is_not_a_zero() -> None:
    step = combined(norms(1.0, 3.0, slices={"grad_norm": (0, 2)}), a_report(arrays={}), placements=("replicated",) * 3)

    assert shown(step.layer_grad_norm) == [1.0, "unseen", 3.0]
    assert (step.num_unseen_layers, step.grad_norm) == (1, None)


# Gradients of sharded layers


def test_the_squares_of_a_sharded_layer_add_up() -> None:
    step = combined(norms(3.0, 1.0), norms(4.0, 1.0), placements=("sharded", "replicated"))

    assert shown(step.layer_grad_norm) == [5.0, 1.0]
    assert step.grad_norm == pytest.approx(math.sqrt(26))


def test_a_sharded_norm_equals_the_norm_of_the_whole() -> None:
    gradient = np.random.default_rng(0).normal(size=1000)
    shards = [norms(float(np.linalg.norm(shard))) for shard in np.array_split(gradient, 7)]

    step = combined(*shards, placements=("sharded",))

    assert step.grad_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-6)


def test_a_rank_without_a_gradient_adds_nothing_to_a_sharded_layer() -> None:
    assert shown(combined(norms(3.0), norms(-1.0), placements=("sharded",)).layer_grad_norm) == [3.0]


# Absence and damage


def test_a_layer_without_gradient_stays_minus_one_and_out_of_the_norm() -> None:
    step = combined(norms(-1.0, 2.0), norms(-1.0, 2.0))

    assert shown(step.layer_grad_norm) == ["absent", 2.0]
    assert step.grad_norm == pytest.approx(2.0)
    assert shown(combined(norms(-1.0), placements=("sharded",)).layer_grad_norm) == ["absent"]


def test_when_nobody_reports_gradients_there_is_no_norm() -> None:
    step = combined(a_report(arrays={}), a_report(arrays={}))

    assert step.grad_norm is None
    assert summarize(step).grad_norm is None


@pytest.mark.parametrize("placement", ["replicated", "sharded"])
@pytest.mark.parametrize("value", [NAN, INF])
def test_one_ranks_bad_gradient_passes(placement: str, value: float) -> None:
    step = combined(norms(1.0, 1.0), norms(1.0, value), norms(1.0, 1.0), placements=(placement, placement))

    assert step.layer_grad_norm.is_bad.tolist() == [False, True]
    assert step.has_bad_grad_norm


def test_norms_too_large_to_square_in_float32_are_kept() -> None:
    assert combined(norms(1e30, 1e30)).grad_norm == pytest.approx(math.sqrt(2) * 1e30)


def test_the_norms_of_another_layer_table_are_left_out() -> None:
    step = combined(norms(3.0, 4.0), norms(1.0, 1.0, 1.0, 1.0), norms(9.0, 9.0, 9.0))

    assert shown(step.layer_grad_norm) == [3.0, 4.0]


def test_local_gradients_are_kept_by_rank() -> None:
    sampled = a_report(arrays={"local_grad_norm": np.array([1.0, NAN], dtype=np.float32)})

    step = combined(norms(1.0, 1.0), sampled)

    assert set(step.local_layer_grad_norm) == {1}
    assert np.isnan(step.local_layer_grad_norm[1]).tolist() == [False, True]


# The rest


def test_a_rank_that_is_missing_is_absent_and_not_zero() -> None:
    step = combine({2: norms(loss=5.0)}, attempt=1, step=9, world=4, layers=layers("replicated", "replicated"))

    assert step.present.tolist() == [False, False, True, False]
    assert step.has_loss.tolist() == [False, False, True, False]
    assert step.mean_loss == 5.0


def test_phases_are_averaged_over_the_ranks_that_saw_them() -> None:
    step = combined(norms(phases=Phases(total=1.0, data=0.2)), norms(phases=Phases(total=3.0)), norms(phases=None))

    assert step.phase_seconds("total") == pytest.approx(2.0)
    assert step.phase_seconds("data") == pytest.approx(0.2)
    assert step.phase_seconds("forward") is None


def test_the_step_ends_when_its_last_rank_does() -> None:
    assert combined(norms(time=5.0), norms(time=9.0), norms(time=7.0)).time == 9.0


def test_a_summary_tells_nan_from_nothing() -> None:
    bad = summarize(combined(norms(1.0, NAN, loss=NAN), norms(1.0, NAN, loss=2.0)))
    assert math.isnan(bad.loss or 0)
    assert math.isnan(bad.grad_norm or 0)
    assert (bad.loss_min, bad.loss_max) == (2.0, 2.0)

    none = summarize(combined(a_report(loss=None, phases=None, lr=(), arrays={})))
    assert (none.loss, none.loss_min, none.grad_norm, none.lr, none.step_seconds) == (None,) * 5


# What is seen beside the numbers


def test_the_lowest_scale_counts() -> None:
    assert combined(norms(1.0), norms(1.0)).scaler is None

    step = combined(norms(scaler=Scaler(8.0, 1)), norms(scaler=Scaler(4.0, 2)), norms(scaler=None))
    assert step.scaler == Scaler(4.0, 2)


def test_only_modes_that_are_not_plainly_train_are_kept() -> None:
    assert not combined(norms(1.0)).has_mode

    step = combined(norms(mode=Mode()), norms(mode=Mode(is_training=False)), norms(mode=None))
    assert (step.has_mode, dict(step.odd_modes)) == (True, {1: Mode(is_training=False)})


def test_only_batches_in_which_bad_elements_were_found_are_kept() -> None:
    bad = Batch(index=7, num_bad=3)
    step = combined(norms(batch=Batch(index=5)), norms(batch=Batch(index=6, num_bad=0)), norms(batch=bad))

    assert dict(step.bad_inputs) == {2: bad}


def test_shares_of_a_sharded_layer_are_means_over_the_ranks_that_have_one() -> None:
    arrays = [{"update_ratio": np.array(values, dtype=np.float32)} for values in ([0.2, -1.0], [0.4, 0.6], [-1.0, 0.2])]
    step = combined(*(a_report(arrays=array) for array in arrays), placements=("sharded", "replicated"))

    merged = step.layer_values("update_ratio")
    assert merged is not None
    assert merged.values.tolist() == pytest.approx([0.3, 0.6])
    assert step.layer_values("update_ratio") is merged


# At once


@pytest.mark.parametrize("seed", range(20))
def test_many_groups_of_layers_give_the_same_at_once_as_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(seed)
    table = layers(*draw.choice(["replicated", "replicated", "replicated", "unknown"], size=40))
    reports = {}
    for rank in range(60):
        start, stride = int(draw.integers(0, 42)), int(draw.integers(1, 4))  # some of another layer table
        values = draw.choice([0.5, 0.5001, 0.7, 0.0, -1.0, -2.0, NAN, INF], size=int(draw.integers(0, 5)), p=PARTS)
        arrays = {"grad_norm": values.astype(np.float32)}
        reports[rank] = a_report(arrays=arrays, slices={"grad_norm": (start, stride)})
    found = []
    for least in (1, 10**6):
        monkeypatch.setattr(reduce_ranks, "MANY_PLACES", least)
        found.append((merge("grad_norm", reports, table, 60), are_apart(by_place("grad_norm", reports, 40), table)))
    (at_once, is_apart), (one_by_one, was_apart) = found

    assert is_apart is was_apart
    assert repr(shown(at_once)) == repr(shown(one_by_one))
