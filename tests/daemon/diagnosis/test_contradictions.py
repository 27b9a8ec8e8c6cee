"""A cause that a known fact excludes leads no diagnosis; `no_contradictions` checks that of all other tests too."""

from collections.abc import Callable

import numpy as np
import pytest

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.rules.parts.finding import Severity
from caboose_wire import Module
from support.cases import a_case, a_finding, a_group, a_validation, order
from support.contradictions import contradiction, excluding

NOISE = np.random.default_rng(3)
SEES = frozenset({"loss", "gradients", "fingerprint", "local_gradients", "phases", "clipping", "mode", "activations"})
LEVEL = {"loss": np.full(200, 2.0), "grad_norm": 1.0 + 0.1 * NOISE.random(200), "lr": np.full(200, 1e-3)}


def a_nan_on_one_rank() -> Case:
    """In the forward, with a usual gradient norm before it and equal replicas."""
    bad = a_finding("non_finite", 150, severity=Severity.CRITICAL, ranks=(1,), phase="forward", values={"num_ranks": 1})
    return a_case(bad, curves=LEVEL, world=4, visible=SEES, groups=(a_group(),))


def a_clipped_divergence() -> Case:
    """The norm is above the limit since the loss broke, and not before."""
    norms = np.concatenate((np.full(150, 0.5), np.linspace(10, 1100, 50)))
    broke = a_finding("divergence", 150, severity=Severity.CRITICAL, values={"loss": 40.0, "level": 2.0})
    clipped = a_finding("clipping", 151, step=190, values={"share": 1.0, "clip_ratio": 1e-3})
    return a_case(broke, clipped, curves={**LEVEL, "grad_norm": norms}, visible=SEES, groups=(a_group(),))


def a_fault_in_float32() -> Case:
    bad = a_finding("non_finite", 150, severity=Severity.CRITICAL, values={"loss_is_infinite": 1.0})
    return a_case(bad, curves=LEVEL, visible=SEES, facts={"precision": "float32", "scaler": False})


def an_overfit_of_new_data() -> Case:
    values = {"validation_loss": 3.0, "best": 2.0, "train": 1.0, "train_at_best": 1.5}
    facts = {"batch_size": 8, "dataset_length": 100_000, "num_trainable": 1_000_000}
    events = [a_validation(100, 2.0), a_validation(200, 3.0)]
    return a_case(a_finding("overfitting", 100, step=200, values=values), curves=LEVEL, facts=facts, events=events)


def a_slow_job_of_one_rank() -> Case:
    times = np.concatenate((np.full(150, 0.1), np.full(50, 0.3)))
    return a_case(a_finding("throughput_regression", 150), curves={**LEVEL, "step_seconds": times}, visible=SEES)


def a_model_without_relu() -> Case:
    modules = tuple(Module(f"blocks.{n}.act", "GELU", 64) for n in range(4))
    return a_case(a_finding("not_learning", 10, step=200), curves=LEVEL, modules=modules, visible=SEES)


def a_plateau_at_the_peak() -> Case:
    return a_case(a_finding("plateau", 100, step=200), curves=LEVEL, visible=SEES, groups=(a_group(),))


def a_run_in_train_mode() -> Case:
    values = {"validation_loss": 3.0, "best": 2.0, "train": 1.0, "train_at_best": 1.5}
    return a_case(a_finding("metric_divergence", 100, step=200, values=values), curves=LEVEL, visible=SEES)


EXCLUDED: list[tuple[str, Callable[[], Case]]] = [
    ("fp16_overflow", a_fault_in_float32),
    ("memorising", an_overfit_of_new_data),
    ("slow_rank", a_slow_job_of_one_rank),
    ("dying_relu", a_model_without_relu),
    ("lr_decayed", a_plateau_at_the_peak),
    ("eval_mode_left_on", a_run_in_train_mode),
    ("uneven_update", a_nan_on_one_rank),
]


@pytest.mark.parametrize(("cause", "case"), EXCLUDED, ids=[cause for cause, _ in EXCLUDED])
def test_a_fact_excludes_a_cause(cause: str, case: Callable[[], Case]) -> None:
    known = case()

    assert excluding(known, cause), "the fact is evidence against it"
    assert cause not in order(diagnose(known))[:1]


def test_a_nan_that_enters_on_one_rank_is_not_the_learning_rate() -> None:
    """Steps that are too large break all replicas alike, and the norm grows first."""
    assert order(diagnose(a_nan_on_one_rank()))[:1] != ["lr_too_high"]


def test_clipping_that_acts_only_since_the_loss_broke_is_a_consequence() -> None:
    assert "clip_too_tight" not in order(diagnose(a_clipped_divergence()))[:1]


def test_a_contradiction_is_seen() -> None:
    """The check itself: a cause that leads against a strong fact is named with that fact."""
    case = an_overfit_of_new_data()
    (memorising,) = (one for one in diagnose(a_case(*(e.worst for e in case.incident.episodes))).causes[:1])
    memorising = type(memorising)(
        id="memorising",
        title=memorising.title,
        confidence=0.9,
        evidence_for=(),
        evidence_against=(),
        advice=memorising.advice,
    )

    assert contradiction(case, [memorising]).startswith("memorising leads with 90%, although 0.016 epochs so far")
