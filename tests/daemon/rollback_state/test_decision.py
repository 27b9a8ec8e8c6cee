"""A decision, explained."""

from caboose_daemon.rollback_state.decision import Decision


def test_of_a_committed_command_the_ranks_whose_result_is_not_there_yet_are_not_called_undecided() -> None:
    decision = Decision(
        job="gpt",
        number=1,
        time=0.0,
        attempt=1,
        step=100,
        mode="auto",
        kind="snapshot",
        state="committed",
        world=2,
        command=7,
        num_answers={"accepted": 1, "done": 1},
        outcome="all ranks acted at step 102",
    )

    assert "command 7: of 2 ranks, 1 done, 1 whose result is awaited" in decision.explain()
