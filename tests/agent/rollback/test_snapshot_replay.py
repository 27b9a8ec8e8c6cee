"""A run that is put back to a snapshot and sees the same data again gives the same losses, on all ranks."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support.training import JOBS, finish, training

pytestmark = pytest.mark.slow
REPLAYED = ("ddp", "ddp_sgd", "ddp_dedupe", "ddp_compiled", "fsdp2", "fsdp2_whole", "fsdp1", "fsdp1_flat")
SKIPPED = ("skip_ddp", "skip_fsdp2", "skip_fsdp1")


@functools.cache
def launch() -> list[dict[str, Any]]:
    """One launch of two ranks does all modes, one after the other."""
    out = Path(tempfile.mkdtemp(prefix="caboose-replay-"))
    with training(out, *REPLAYED, *SKIPPED, env={}, script=JOBS / "replayed.py") as job:
        return finish(job, out, timeout=110)


def ranks(mode: str) -> list[dict[str, Any]]:
    return [rank[mode] for rank in launch()]


@pytest.mark.parametrize("mode", REPLAYED)
def test_a_replay_after_going_back_gives_the_same_losses_bit_for_bit(mode: str) -> None:
    for rank in ranks(mode):
        assert rank["taken"]
        assert rank["pinned"] == ""
        assert rank["age"] == 4
        assert rank["is_back"], "every tensor is what it was at the snapshot"
        assert rank["again"] == rank["first"]
        assert len(set(rank["first"])) == 5, "the losses were not all the same anyway"
        assert rank["is_end_equal"], "and so is the whole state after the replay"
        assert rank["is_ema_equal"]


@pytest.mark.parametrize("mode", REPLAYED)
def test_nothing_lies_elsewhere_in_memory_afterwards(mode: str) -> None:
    assert all(rank["is_in_place"] for rank in ranks(mode))


@pytest.mark.parametrize("mode", ["ddp", "ddp_sgd", "ddp_dedupe", "ddp_compiled"])
def test_replicas_have_one_fingerprint_which_goes_back_with_them(mode: str) -> None:
    assert all(rank["is_print_back"] for rank in ranks(mode))
    assert len({rank["fingerprint"] for rank in ranks(mode)}) == 1


@pytest.mark.parametrize("mode", ["fsdp2", "fsdp1"])
def test_shards_have_no_fingerprint_to_compare(mode: str) -> None:
    assert [rank["fingerprint"] for rank in ranks(mode)] == [None, None]


@pytest.mark.parametrize("mode", ["ddp_dedupe", "ddp_compiled"])
def test_ranks_that_share_snapshots_each_keep_about_half(mode: str) -> None:
    whole = ranks("ddp")[0]["num_bytes"]
    parts = [rank["num_bytes"] for rank in ranks(mode)]
    assert max(parts) < 0.6 * whole


@pytest.mark.parametrize("mode", SKIPPED)
def test_a_bad_batch_on_one_rank_leaves_the_update_out_on_all(mode: str) -> None:
    for rank in ranks(mode):
        found = rank["bad"]
        assert found["is_moved"] == [True, True, True, False, True, True]
        assert found["num_skipped"] == 1
        assert found["why_off"] == ""
        assert found["failures"] == 0
        assert "norm is nan" in found["reason"] or "norm is inf" in found["reason"]


@pytest.mark.parametrize("mode", SKIPPED)
def test_watching_the_norm_changes_no_number_and_adds_no_collective(mode: str) -> None:
    for rank in ranks(mode):
        bare, watched = rank["bare"], rank["watched"]
        assert watched["num_skipped"] == 0
        assert watched["losses"] == bare["losses"]
        assert watched["norms"] == bare["norms"]
        assert watched["collectives"] == bare["collectives"]
