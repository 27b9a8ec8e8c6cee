"""What counts as found, named, explained and wrong in a drill."""

from pathlib import Path
from typing import Any

import pytest

from caboose_daemon.ops.drills import results, scores, tables
from caboose_daemon.ops.drills.catalogue import Catalogue, Drill
from caboose_daemon.ops.drills.judge import DrillOutcome, judge
from caboose_daemon.ops.drills.results import Result


def a_drill(**changes: Any) -> Drill:
    fields: dict[str, Any] = {"name": "spike", "about": "", "rule": "loss_spike", "cause": ("outlier_batch",)}
    return Drill(**{**fields, "fault_step": 100, **changes})


def a_finding(rule: str = "loss_spike", severity: str = "warning", told: int = 105, **first: Any) -> dict[str, Any]:
    part = {"summary": "so it is", "ranks": [], "layers": [], **first}
    return {"rule": rule, "severity": severity, "told_step": told, "onset_step": told, "first": part, "last": part}


def an_incident(*causes: str, rule: str = "loss_spike", onset: int = 105, **witness: Any) -> dict[str, Any]:
    return {
        "rule": "another",
        "onset_step": onset,
        "merged_into": None,
        "members": [{"rule": rule, "severity": "warning", "detected_step": onset}],
        "witness": witness,
        "diagnosis": {"causes": [{"id": cause} for cause in causes], "unknown": 0.2},
    }


def test_a_warning_of_the_rule_since_the_fault_is_found_with_its_delay() -> None:
    outcome = judge(a_drill(), 3, [a_finding(told=105), a_finding(told=140)], None)
    assert (outcome.seed, outcome.found, outcome.told_step, outcome.delay) == (3, True, 105, 5)
    assert (outcome.wrong, outcome.origin, outcome.cause_rank) == ({}, None, None)


def test_info_is_not_found_unless_that_is_all_the_rule_says() -> None:
    assert not judge(a_drill(), 0, [a_finding(severity="info")], None).found
    assert judge(a_drill(severity="info"), 0, [a_finding(severity="info")], None).found


def test_what_is_said_before_the_fault_is_wrong_whoever_says_it() -> None:
    drill = a_drill(companions=("bad_batch",))
    outcome = judge(drill, 0, [a_finding(told=99), a_finding("bad_batch", told=20)], None)
    assert not outcome.found
    assert outcome.wrong == {"loss_spike": "warning", "bad_batch": "warning"}


def test_companions_may_speak_and_others_may_not_above_info() -> None:
    said = [
        a_finding(),
        a_finding("bad_batch"),
        a_finding("plateau", "info"),
        a_finding("divergence", "critical"),
        a_finding("divergence"),
    ]
    outcome = judge(a_drill(companions=("bad_batch",)), 0, said, None)
    assert outcome.wrong == {"divergence": "critical"}
    assert outcome.num_critical == 1
    assert outcome.spoke == ("bad_batch", "divergence", "loss_spike")


@pytest.mark.parametrize(
    ("ranks", "layers", "is_named"),
    [
        ([1], ["layer2.activation", "head"], True),
        ([1], ["layer2"], True),
        ([1], ["layer20.linear"], False),
        ([1], ["head", "layer2.activation"], False),
        ([1], [], False),
        ([0, 1], ["layer2"], False),
        ([], ["layer2"], False),
    ],
)
def test_an_origin_is_named_by_exactly_its_ranks_and_its_layer_first(
    ranks: list[int], layers: list[str], is_named: bool
) -> None:
    drill = a_drill(origin_ranks=(1,), origin_layers=("layer2",))
    assert judge(drill, 0, [a_finding(ranks=ranks, layers=layers)], None).origin is is_named


def test_the_witness_of_the_incident_may_name_the_origin_too() -> None:
    drill = a_drill(origin_ranks=(2,))
    assert judge(drill, 0, [a_finding()], [an_incident(ranks=[2])]).origin is True
    assert judge(drill, 0, [a_finding()], [an_incident(ranks=[0, 2])]).origin is False
    assert judge(drill, 0, [a_finding()], [an_incident(ranks=[])]).origin is False


def test_the_cause_is_looked_for_in_the_first_incident_since_the_fault_that_holds_the_rule() -> None:
    incidents = [
        an_incident("outlier_batch", onset=20),
        an_incident("lr_too_high", "outlier_batch", onset=104),
        an_incident("outlier_batch", onset=150),
        an_incident("outlier_batch", rule="plateau", onset=101),
    ]
    outcome = judge(a_drill(), 0, [a_finding()], incidents)
    assert (outcome.cause_rank, outcome.causes) == (2, ("lr_too_high", "outlier_batch"))
    assert judge(a_drill(cause=("nothing", "lr_too_high")), 0, [a_finding()], incidents).cause_rank == 1
    assert judge(a_drill(cause=("nothing",)), 0, [a_finding()], incidents).cause_rank == 0
    assert judge(a_drill(), 0, [a_finding()], []).cause_rank == 0
    assert judge(a_drill(), 0, [], incidents).cause_rank == 0, "what is not found is not explained"
    assert judge(a_drill(), 0, [a_finding()], None).cause_rank is None


def test_a_fault_that_is_told_as_several_incidents_has_failed_the_seed() -> None:
    drill = a_drill(companions=("divergence",))
    once = [an_incident(), an_incident(rule="straggler"), an_incident(onset=99)]
    merged = {**an_incident(rule="divergence"), "merged_into": 1}
    aside = an_incident(rule="divergence")
    aside["members"][0]["severity"] = "info"

    assert judge(drill, 0, [a_finding()], [*once, merged, aside]).num_incidents == 1
    twice = judge(drill, 0, [a_finding()], [*once, an_incident(rule="divergence")])
    assert (twice.found, twice.num_incidents, twice.is_one) == (True, 2, False)
    assert judge(drill, 0, [a_finding()], None).num_incidents is None
    assert judge(a_drill(rule=""), 0, [], once).num_incidents is None, "a healthy run has no fault to tell of"

    result = a_result(twice, *(DrillOutcome(seed=seed, found=True, num_incidents=1) for seed in range(1, 4)))
    assert not scores.is_passed(result), "three of four"
    assert scores.is_passed(a_result(*result.outcomes, DrillOutcome(seed=4, found=True, num_incidents=1)))
    assert tables.incidents(result) == "1-2"
    assert scores.goals([result])[-1] == scores.Goal("one fault, one incident: in 3 of 4 seeds; more in spike", False)


def a_result(*outcomes: DrillOutcome, **changes: Any) -> Result:
    return Result(drill=a_drill(**changes), outcomes=outcomes, seconds=10.0)


def test_four_of_five_seeds_suffice_and_three_do_not() -> None:
    four = a_result(*(DrillOutcome(seed=seed, found=seed != 2) for seed in range(5)))
    three = a_result(*(DrillOutcome(seed=seed, found=seed > 1) for seed in range(5)))
    assert scores.is_passed(four)
    assert not scores.is_passed(three)
    assert not scores.is_passed(a_result(DrillOutcome(seed=0, error="hangs"), DrillOutcome(seed=1, found=True)))


def test_a_healthy_run_fails_by_a_critical_finding_only() -> None:
    assert scores.is_passed(a_result(DrillOutcome(seed=0, wrong={"plateau": "warning"}), rule=""))
    assert not scores.is_passed(a_result(DrillOutcome(seed=0, wrong={"plateau": "critical"}), rule=""))


def test_goals_say_what_is_met_missed_and_not_measured() -> None:
    good = [
        a_result(
            *(DrillOutcome(seed=s, found=True, cause_rank=1, causes=("outlier_batch",), origin=True) for s in range(5)),
            name=f"good{number}",
            origin_ranks=(1,),
        )
        for number in range(3)
    ]
    twin = a_result(*(DrillOutcome(seed=seed) for seed in range(20)), name="twin", rule="")
    assert [goal.is_met for goal in scores.goals([*good, twin])] == [True, True, True, True]

    unseen = a_result(*(DrillOutcome(seed=seed, cause_rank=0) for seed in range(5)), name="unseen", origin_ranks=(1,))
    sick = a_result(*(DrillOutcome(seed=s, wrong={"plateau": "critical"}) for s in range(20)), name="sick", rule="")
    missed = scores.goals([good[0], unseen, sick])
    assert [goal.is_met for goal in missed] == [False, False, False, False]
    assert "not unseen" in missed[0].text

    few = a_result(DrillOutcome(seed=0), name="few", rule="")
    alone = a_result(DrillOutcome(seed=0, found=True))
    assert [goal.is_met for goal in scores.goals([alone, few])] == [True, None, None]


def test_a_drill_that_was_never_found_has_no_right_cause() -> None:
    result = a_result(
        DrillOutcome(seed=0, found=True, cause_rank=1),
        DrillOutcome(seed=1, cause_rank=0),
        DrillOutcome(seed=2, cause_rank=0),
    )
    assert scores.usual_cause_rank(result) == float("inf")


def test_results_are_kept_over_calls(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert results.load(file) == {}
    first = a_result(DrillOutcome(seed=0, found=True, wrong={"plateau": "critical"}, spoke=("loss_spike", "plateau")))
    results.save(file, [first])
    assert results.load(file) == {"spike": first}
    file.write_text("{")
    with pytest.raises(ValueError, match=r"results\.json is not a file of drill results"):
        results.load(file)


def test_a_whole_measurement_begins_anew_and_only_a_resumed_one_takes_what_there_is() -> None:
    a, b = a_drill(name="a"), a_drill(name="b")
    known = {"a": a_result(DrillOutcome(seed=0), name="a")}

    assert results.to_measure([a, b], known, is_part=False, is_resumed=False) == ({}, [a, b])
    assert results.to_measure([a, b], known, is_part=False, is_resumed=True) == (known, [b])
    assert results.to_measure([a], known, is_part=True, is_resumed=False) == ({}, [a])
    assert results.to_measure([b], known, is_part=True, is_resumed=False) == (known, [b])


def test_the_page_counts_in_how_many_seeds_each_rule_spoke() -> None:
    spoke = [("loss_spike",), ("loss_spike", "plateau"), ()]
    result = a_result(*(DrillOutcome(seed=seed, spoke=rules) for seed, rules in enumerate(spoke)))
    assert tables.matrix([result]) == [["drill", "loss_spike", "plateau"], ["spike (3)", "**2**", "1"]]
    page = tables.markdown([result], "make drills")
    assert "| spike (3) | **2** | 1 |" in page
    assert "- MISSED: found by its own rule" in page


def test_names_are_chosen_in_the_order_of_the_catalogue() -> None:
    known = Catalogue((a_drill(name="a"), a_drill(name="b")), (a_drill(name="h", rule=""),))
    assert [drill.name for drill in known.named(("b", "a"))] == ["a", "b"]
    assert [drill.name for drill in known.named(("healthy", "b"))] == ["b", "h"]
    assert [drill.name for drill in known.named(("all",))] == ["a", "b"]
    with pytest.raises(ValueError, match="no drill 'c'; known: a, b, h, all, healthy"):
        known.named(("c",))
