"""The tools work on DDP and FSDP2 models as on whole ones, leave them as they were, or say why not."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support.training import JOBS, finish, training

pytestmark = pytest.mark.slow
WAYS = ["ddp_views", "fsdp2"]


@functools.cache
def ranks() -> list[dict[str, Any]]:
    """What each rank saw; one launch does everything."""
    out = Path(tempfile.mkdtemp(prefix="caboose-preflight-"))
    with training(out, env={}, script=JOBS / "preflighted.py") as job:
        return finish(job, out, timeout=110)


@pytest.mark.parametrize("way", WAYS)
def test_everything_is_as_it_was_on_every_rank(way: str) -> None:
    for rank in ranks():
        assert rank[way]["changed"] == []
        assert rank[way]["trained"] == rank[way]["control"], "and the run goes on as if nothing had been"


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_the_numbers_are_those_of_the_whole_model(way: str) -> None:
    whole = ranks()[0]["whole"]["plain"]
    for rank in ranks():
        found = rank["whole"][way]
        assert found["norms"] == pytest.approx(whole["norms"], rel=1e-5)
        assert found["means"] == pytest.approx(whole["means"], rel=1e-4, abs=1e-8)
        assert found["highest"] == pytest.approx(whole["highest"], rel=1e-5)
        assert found["profile"] == pytest.approx(whole["profile"], rel=1e-5)
        assert found["eigenvalue"] == pytest.approx(whole["eigenvalue"], rel=1e-2)


@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_come_to_the_same_verdicts(way: str) -> None:
    first, second = (rank[way] for rank in ranks())
    for shared in ("verdicts", "suggestion", "overfit", "norms"):
        assert first[shared] == second[shared]
    assert first["verdicts"]["loss_falls"] == first["verdicts"]["overfits"] == "pass"
    assert first["suggestion"] is not None


@pytest.mark.parametrize(("kind", "says"), [("fsdp1", "use fully_shard"), ("tensor_parallel", "tensor parallel?")])
def test_a_model_that_is_not_understood_is_refused_with_the_reason(kind: str, says: str) -> None:
    assert says in ranks()[0]["refused"][kind]


@pytest.mark.parametrize(
    ("kind", "grade", "says"),
    [
        ("ddp", "fail", "and DDP would wait for them"),
        ("ddp, told", "warn", "are not used in forward"),
        ("fsdp2", "warn", "are not used in forward"),
        ("fsdp2, cut", "fail", "though forward uses them"),
    ],
)
def test_parameters_without_a_gradient_fail_where_they_do_harm(kind: str, grade: str, says: str) -> None:
    for rank in ranks():
        found = rank["unused"][kind]
        assert found[0] == grade
        assert says in found[1]


def test_when_one_rank_raises_no_other_waits_for_it() -> None:
    assert [rank["failing"] for rank in ranks()] == [
        "no step can be made: on rank 1: KeyError: 'labels'",
        "no step can be made: KeyError: 'labels'",
    ]
