"""Masks beside numbers: what the wire's negative numbers become, and that the journal gets them back."""

import numpy as np

from caboose_daemon.steps.masked import LayerValues, ModuleValues

NAN, INF = float("nan"), float("inf")
ON_WIRE = np.array([2.0, 0.0, NAN, INF, -1.0, -2.0])


def test_a_negative_number_of_the_wire_is_no_value_and_nan_is_one() -> None:
    found = LayerValues.from_wire(ON_WIRE)

    assert found.has.tolist() == [True, True, True, True, False, False]
    assert found.is_known.tolist() == [True, True, False, True, False, False]
    assert found.is_finite.tolist() == [True, True, False, False, False, False]
    assert found.is_bad.tolist() == [False, False, True, True, False, False]
    assert found.values[~found.has].tolist() == [0.0, 0.0]


def test_what_had_nothing_to_show_is_distinguished_from_what_no_rank_looked_at() -> None:
    found = LayerValues.from_wire(ON_WIRE)

    assert np.flatnonzero(found.is_absent).tolist() == [4]
    assert found.num_unseen == 1


def test_the_journal_gets_the_wires_numbers_back() -> None:
    for values in (ON_WIRE, ON_WIRE.astype(np.float32)):
        kept = LayerValues.from_wire(values).to_wire()
        np.testing.assert_array_equal(kept, values)
        assert kept.dtype == values.dtype


def test_a_row_of_bins_is_there_if_its_first_bin_is() -> None:
    found = LayerValues.from_wire(np.array([[0.25, 0.75], [-2.0, -2.0]]))

    assert found.has.tolist() == [True, False]
    assert found.values.tolist() == [[0.25, 0.75], [0.0, 0.0]]


def test_a_module_has_a_value_on_the_ranks_that_saw_it() -> None:
    found = ModuleValues([0, 3], np.array([[0.5, -1.0], [NAN, 0.25]], dtype=np.float32))

    assert found.has.tolist() == [[True, False], [True, True]]
    assert found.is_known.tolist() == [[True, False], [False, True]]
    assert found.values[0].tolist() == [0.5, 0.0]
    assert found.values.dtype == np.float32
