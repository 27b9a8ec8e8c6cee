"""The numbers of the last steps beside what is usual for them."""

import numpy as np

from caboose_daemon.diagnosis.recent_numbers import recent_numbers
from support.cases import a_case, a_finding, a_group


def test_each_known_number_has_a_line_with_its_usual_range() -> None:
    norms = np.concatenate([np.full(100, 50.0), np.tile([1.0, 3.0], 10)])
    curves = {"loss": np.full(120, 2.0), "grad_norm": norms, "lr": np.full(120, 5e-4)}
    lines = list(recent_numbers(a_case(a_finding("plateau"), curves=curves, groups=[a_group("AdamW", lr=1e-3)])))
    assert lines == [
        "loss in the last 20 steps: mean 2, std 0, highest 2",
        "gradient norm in the last 20 steps: mean 2, std 1, highest 3 (0.1 to 10 is usual)",
        "learning rate 0.0005, 50 % of its peak (peaks of 1e-05 to 0.003 are usual for AdamW)",
    ]


def test_what_was_not_reported_has_none() -> None:
    assert list(recent_numbers(a_case(a_finding("plateau")))) == []
    broken = a_case(a_finding("non_finite"), curves={"loss": np.full(20, np.nan)})
    assert list(recent_numbers(broken)) == []
