"""Three real ranks of a DDP job on gloo: whatever goes wrong, all of them act at one boundary or none does."""

from typing import Any

import pytest

from support.agreeing import GATE_SECONDS, results_of_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

ACTED = ("ok", "link_dead", "daemon_dies_after_one", "duplicate", "slow_rank", "next_boundary")
NOT_ACTED = ("late", "stale_incarnation", "missing_snapshot", "bad_target", "dead_agent", "leaving")
SLACK_SECONDS = 1.0
"""For a machine on which the ranks share their cores with others."""

Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results_of_ranks(tmp_path_factory.mktemp("agreeing"))


def outcomes(result: dict[str, Any]) -> list[str]:
    return [outcome for _, outcome, _ in result["answers"]]


@pytest.mark.parametrize("name", ACTED)
def test_all_ranks_go_back_at_the_same_step(results: Results, name: str) -> None:
    boundary = 6 if name == "next_boundary" else 12

    for rank in results:
        assert rank[name]["done"] == [[1, boundary]]
        assert outcomes(rank[name]) == ["accepted", "done"]
        assert rank[name]["hash"] == results[0][name]["hash"]
        assert rank[name]["hash"] != results[0]["no_daemon"]["hash"]


@pytest.mark.parametrize("name", NOT_ACTED)
def test_where_not_all_can_act_the_run_goes_on_as_if_nothing_had_been_asked(results: Results, name: str) -> None:
    for rank in results:
        assert rank[name]["done"] == []
        assert rank[name]["error"] == ""
        assert rank[name]["hash"] == results[0]["no_daemon"]["hash"]


def test_ranks_say_why_they_refuse_and_the_others_why_nothing_came_of_it(results: Results) -> None:
    late, stale, missing = ([rank[name]["answers"] for rank in results] for name in NOT_ACTED[:3])

    # Who is a step behind may have armed when it heard; then it learns that another was late.
    assert all(answers[-1][1] in ("refused", "aborted") and "late" in answers[-1][2] for answers in late)
    assert all(
        outcome == "refused" and "another group" in detail for answers in stale for _, outcome, detail in answers
    )
    assert missing[1] == [[1, "refused", "no snapshot of step 4"]]
    assert missing[0][-1] == missing[2][-1] == [1, "aborted", "rank 1: no snapshot of step 4"]


def test_a_dead_helper_costs_the_others_one_wait_at_the_gate_and_its_own_rank_none(results: Results) -> None:
    waits = [rank["dead_agent"]["longest"] for rank in results]

    assert GATE_SECONDS <= max(waits) < GATE_SECONDS + SLACK_SECONDS
    assert waits[2] < GATE_SECONDS / 2
    assert "only 2 ranks were ready" in results[0]["dead_agent"]["answers"][-1][2]


def test_a_rank_that_leaves_early_vetoes_what_it_was_ready_for(results: Results) -> None:
    for rank in results:
        assert rank["leaving"]["answers"][-1] == [1, "aborted", "rank 0: it is leaving"]
        assert rank["leaving"]["longest"] < GATE_SECONDS / 2


def test_every_kind_of_command_goes_the_same_way(results: Results) -> None:
    for rank in results:
        found = rank["other_kinds"]
        assert found["done"] == [[1, 5], [2, 8], [4, 12], [5, 16]]
        assert found["lr"] == pytest.approx(0.025)
        assert found["hash"] == results[0]["other_kinds"]["hash"]
        assert found["error"] == "RunStopped: stopped after step 16 on all ranks: enough"


def test_when_one_rank_cannot_carry_it_out_all_stop(results: Results) -> None:
    errors = [rank["act_fails"]["error"] for rank in results]

    assert all(error.startswith("RollbackFailed: command 1 (rollback) after step 12") for error in errors)
    assert "the host ran out of memory" in errors[1]
    assert "another rank could not" in errors[0]
    assert [outcomes(rank["act_fails"])[-1] for rank in results] == ["failed"] * 3


def test_when_the_parameters_differ_afterwards_all_stop(results: Results) -> None:
    for rank in results:
        assert "the parameters differ between the ranks" in rank["comes_apart"]["error"]


def test_what_moves_no_parameter_is_carried_out_on_replicas_that_differed_before(results: Results) -> None:
    """The run is ill, and its rule says so; a checkpoint or another rate is not what should end it."""
    for rank in results:
        assert rank["was_apart"]["done"] == [[1, 5], [2, 8], [4, 12]]
        assert rank["was_apart"]["error"] == ""
        assert rank["was_apart"]["lr"] == pytest.approx(0.025)
    assert results[2]["was_apart"]["hash"] != results[0]["was_apart"]["hash"]


def test_under_stress_all_ranks_do_the_same_and_end_the_same(results: Results) -> None:
    stress = [rank["stress"] for rank in results]

    assert stress[0]["done"] == stress[1]["done"] == stress[2]["done"]
    assert stress[0]["hash"] == stress[1]["hash"] == stress[2]["hash"]
    assert {rank["error"] for rank in stress} == {""}
    num_done, num_seen = len(stress[0]["done"]), max(number for number, _, _ in stress[0]["answers"])
    assert num_seen >= 100
    assert 10 < num_done < num_seen - 10
    assert max(rank["longest"] for rank in stress) < GATE_SECONDS + SLACK_SECONDS


def test_when_rank_0_is_killed_no_other_rank_acts_or_hangs(results: Results) -> None:
    at_the_gate, never_armed = (rank["killed"] for rank in results[1:])

    assert at_the_gate["error"].startswith("RollbackInDoubt: command 1 (rollback) was due after step 8")
    assert "RollbackInDoubt" not in never_armed["error"]
    assert never_armed["error"] != ""  # the process group's own error, from the collective rank 0 did not come to
    for rank in (at_the_gate, never_armed):
        assert rank["done"] == []
        assert rank["seconds"] < 10
