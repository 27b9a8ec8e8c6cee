"""The protocol's specification: every order of events of one command on a few ranks, and what simpler designs do."""

import pytest

from support import protocol_model as model


@pytest.mark.parametrize(("num_ranks", "num_worlds"), [(2, 1206), (3, 7996)])
def test_the_sealed_protocol_never_mixes_and_never_locks_up(num_ranks: int, num_worlds: int) -> None:
    verdict = model.check(model.sealed, num_ranks)

    assert verdict == model.Verdict(num_worlds, num_mixed=0, num_deadlocks=0, can_commit=True, can_abort=True)


@pytest.mark.parametrize(("num_ranks", "num_worlds", "num_mixed"), [(2, 2218, 32), (3, 20418, 184)])
def test_arming_must_be_atomic_with_the_look_at_the_boundary(num_ranks: int, num_worlds: int, num_mixed: int) -> None:
    verdict = model.check(model.sealed_but_arming_not_atomic, num_ranks)

    assert (verdict.num_worlds, verdict.num_mixed) == (num_worlds, num_mixed)


@pytest.mark.parametrize(("num_ranks", "num_worlds", "num_mixed"), [(2, 176, 32), (3, 640, 192)])
def test_a_plain_broadcast_lets_the_replicas_come_apart(num_ranks: int, num_worlds: int, num_mixed: int) -> None:
    verdict = model.check(model.naive_broadcast, num_ranks)

    assert (verdict.num_worlds, verdict.num_mixed) == (num_worlds, num_mixed)


@pytest.mark.parametrize(("num_ranks", "num_worlds", "num_mixed"), [(2, 860, 32), (3, 4216, 192)])
def test_two_phases_that_presume_abort_mix_when_a_commit_is_lost(
    num_ranks: int, num_worlds: int, num_mixed: int
) -> None:
    verdict = model.check(model.two_phases_presume_abort, num_ranks)

    assert (verdict.num_worlds, verdict.num_mixed) == (num_worlds, num_mixed)


@pytest.mark.parametrize(("num_ranks", "num_worlds", "num_deadlocks"), [(2, 792, 59), (3, 3920, 216)])
def test_two_phases_that_wait_lock_up_when_the_daemon_dies(num_ranks: int, num_worlds: int, num_deadlocks: int) -> None:
    verdict = model.check(model.two_phases_wait, num_ranks)

    assert (verdict.num_worlds, verdict.num_mixed, verdict.num_deadlocks) == (num_worlds, 0, num_deadlocks)


@pytest.mark.parametrize(("num_ranks", "num_worlds"), [(2, 286), (3, 1048)])
def test_sealing_a_belief_at_every_boundary_is_safe_too(num_ranks: int, num_worlds: int) -> None:
    """It is not built because every rank would ask the store at every boundary, and nobody would have to be ready."""
    verdict = model.check(model.seal_a_belief, num_ranks)

    assert verdict == model.Verdict(num_worlds, num_mixed=0, num_deadlocks=0, can_commit=True, can_abort=True)
