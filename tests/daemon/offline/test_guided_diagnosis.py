"""`caboose diagnose --guided` asks for the symptom, and then only for what the run does not tell."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from caboose_daemon.cli import caboose
from caboose_daemon.incidents.causal_links import CONSEQUENCES
from caboose_daemon.offline.guided.questions import QUESTIONS
from caboose_daemon.offline.guided.symptoms import SYMPTOMS
from support.scenario import JournaledCore, scenario
from support.written_logs import falling, written

Make = Callable[..., JournaledCore]


def talk(*lines: str, run: str = "", as_json: bool = True) -> Result:
    arguments = ["diagnose", "--guided", *([run] if run else []), *(["--json"] if as_json else [])]
    first = [] if run else [""]
    return CliRunner().invoke(caboose, arguments, input="".join(f"{line}\n" for line in [*first, *lines]))


def told(*lines: str, run: str = "") -> dict[str, Any]:
    done = talk(*lines, *[""] * len(QUESTIONS), run=run)
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def causes(answer: dict[str, Any]) -> list[str]:
    return [cause["id"] for cause in answer["incidents"][0]["diagnosis"]["causes"]]


def confidence(answer: dict[str, Any], cause: str) -> float:
    rows = answer["incidents"][0]["diagnosis"]["causes"]
    return next((float(row["confidence"]) for row in rows if row["id"] == cause), 0.0)


def test_without_a_run_the_answers_lead_to_the_cause() -> None:
    assert causes(told("nan", "300", "y"))[0] == "input_not_finite"
    assert causes(told("1", "300", "n", "y", "y", "n", "float32"))[0] == "log_of_zero"
    assert causes(told("1", "300", "n", "n", "n", "n", "float16", "0.5"))[0] == "fp16_overflow"
    assert causes(told("stuck", "50", "2.303", "Adam", "0.001", "n", "0", "0", "10"))[0] == "labels_shuffled"
    assert causes(told("stuck", "50", "", "", "", "y"))[0] == "eval_mode_left_on"
    assert causes(told("slow", "500", "70%", "0"))[0] == "slow_loader"


def test_nothing_is_an_answer_too_and_leaves_most_unknown() -> None:
    answer = told("plateau")

    assert answer["guided"]["answers"] == {}
    assert answer["incidents"][0]["diagnosis"]["unknown"] > 0.5


def test_no_is_evidence_against() -> None:
    silent, denied = told("nan", "300"), told("nan", "300", "n")

    assert confidence(denied, "input_not_finite") < confidence(silent, "input_not_finite")


def test_a_sign_that_was_looked_for_in_vain_is_evidence_against() -> None:
    silent, denied = told("hangs", "300"), told("hangs", "300", "", "0")

    assert confidence(denied, "rank_killed") < confidence(silent, "rank_killed")


def test_a_log_answers_what_it_can_and_the_rest_alone_is_asked_for(tmp_path: Path) -> None:
    losses = falling(600, 1.0)
    losses[400:406] += np.linspace(8, 1, 6)
    log = written(tmp_path, "spiking", losses, lr=1e-3, optimizer="AdamW")

    done = talk("spike", *[""] * 9, run=log, as_json=False)

    assert done.exit_code == 0, done.output
    assert "Found in the run: loss_spike from step 400" in done.stdout
    assert "Known from the run: optimizer AdamW, lr 0.001" in done.stdout
    assert "Which optimizer?" not in done.stdout
    assert "After how many steps was the loss back" not in done.stdout, "the curve shows that"
    assert "Did the gradient norm grow" in done.stdout, "it was not logged"
    assert "outlier_batch" in done.stdout


def test_a_job_of_a_journal_is_not_asked_what_its_agent_told(journaled: Make, tmp_path: Path) -> None:
    story = scenario(ranks=2, core=journaled(), job="llama", facts={"optimizer": "AdamW", "precision": "bfloat16"})
    story.nan_loss(1, at=30).healthy(3)

    answer = told("nan", run=f"{tmp_path}/journal.sqlite:llama")

    assert answer["guided"]["is_seen"]
    assert answer["guided"]["known"]["precision"] == "bfloat16"
    assert answer["incidents"][0]["id"] == "llama/1"


def test_what_the_rules_do_not_see_rests_on_the_users_word(tmp_path: Path) -> None:
    log = written(tmp_path, "fine", falling(300, 1.0))

    done = talk("hangs", "250", *[""] * 9, run=log, as_json=False)

    assert "No rule found this in fine" in done.stdout
    assert "reported by you: the run hangs" in done.stdout


def test_an_answer_that_is_none_is_asked_for_again() -> None:
    done = talk("everything", "99", "1", "soon", "300", "maybe", "y", *[""] * 12, as_json=False)

    assert done.exit_code == 0, done.output
    assert done.stdout.count("Number, 1 to") == 3
    assert done.stdout.count("At which step did it begin?") == 2
    assert "Please give y or n, or leave it empty" in done.stdout


def test_a_conversation_that_is_broken_off_ends_cleanly() -> None:
    done = talk("1", "300")

    assert done.exit_code == 1
    assert done.stdout == ""
    assert "interrupted; nothing was kept" in done.stderr
    assert "Traceback" not in done.output


def test_for_programs_the_questions_go_to_standard_error() -> None:
    done = talk("nan", *[""] * 12)

    json.loads(done.stdout)
    assert "What is wrong?" in done.stderr


def test_one_conversation_is_about_one_run() -> None:
    done = CliRunner().invoke(caboose, ["diagnose", "--guided", "one", "two"])

    assert done.exit_code == 2
    assert "--guided takes one run" in done.stderr


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.name)
def test_every_symptom_has_rules_questions_and_causes(symptom: Any) -> None:
    assert symptom.rules <= CONSEQUENCES.keys()
    asked = [question for question in QUESTIONS if symptom.name in question.symptoms]
    assert asked
    assert all(question.rule in CONSEQUENCES for question in asked if question.rule)
    assert len({question.key for question in asked}) == len(asked)
    assert causes(told(symptom.name, "100"))


def given(*arguments: str) -> Result:
    return CliRunner().invoke(caboose, ["diagnose", *arguments, "--json"], input="")


def test_several_symptoms_are_one_incident_and_get_the_questions_of_all() -> None:
    answer = told("7,10", "100")

    assert answer["guided"]["symptoms"] == ["overfits", "slow"]
    assert {member["rule"] for member in answer["incidents"][0]["members"]} == {"overfitting", "throughput_regression"}
    both = json.loads(given("--symptom", "overfits", "--symptom", "slow", "--answer", "data_starved=70%").stdout)
    named = [cause["id"] for cause in both["incidents"][0]["diagnosis"]["causes"]]
    assert "slow_loader" in named


def test_symptoms_of_a_run_that_only_the_user_sees_join_its_incident(tmp_path: Path) -> None:
    losses = falling(600, 1.0)
    losses[400:406] += np.linspace(8, 1, 6)
    log = written(tmp_path, "spiking", losses, lr=1e-3)

    answer = json.loads(given(log, "--symptom", "spike,slow").stdout)

    rules = {member["rule"] for member in answer["incidents"][0]["members"]}
    assert {"loss_spike", "throughput_regression"} <= rules
    assert answer["guided"]["is_seen"]


def test_with_the_symptom_given_nothing_is_asked_and_answers_count() -> None:
    done = given("--symptom", "overfits", "--answer", "dropout=0", "--answer", "weight_decay=0")

    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["guided"]["answers"] == {"dropout": 0.0, "weight_decay": 0.0}
    asked = [row["question"] for row in answer["guided"]["questions"]]
    assert any("dropout" in text for text in asked)


def test_a_description_in_own_words_leads_to_symptoms() -> None:
    answer = json.loads(given("--symptom", "my gradients are exploding after warmup").stdout)
    assert answer["guided"]["symptoms"] == ["explodes"]
    assert answer["guided"]["words"].startswith("my gradients")
    slow = json.loads(given("--symptom", "loss decreases very slowly").stdout)
    assert slow["guided"]["symptoms"] == ["creeps"]


def test_what_no_cause_can_explain_is_referred() -> None:
    memory = given("--symptom", "CUDA out of memory at step 3")
    assert memory.exit_code == 2
    assert "activation checkpointing" in memory.stderr
    reward = json.loads(given("--symptom", "other: PPO reward is flat").stdout)
    assert "reinforcement learning" in reward["guided"]["referral"]


def test_answers_about_own_code_name_what_to_check() -> None:
    answer = json.loads(given("--symptom", "nan", "--answer", "custom_loss=y", "--answer", "largest_input=255").stdout)

    assert any("your own loss" in text for text in answer["guided"]["checks"])
    assert any("preprocessing" in text for text in answer["guided"]["checks"])
    assert "unnormalised_input" in causes(answer)


def test_a_rate_far_below_its_peak_is_a_decayed_schedule_without_a_run() -> None:
    answers = ("--answer", "lr=1e-8", "--answer", "initial_lr=1e-3", "--answer", "scheduler=cosine")
    assert causes(json.loads(given("--symptom", "plateau", *answers).stdout))[0] == "lr_decayed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--symptom", "purple"), "--symptom purple: give nan"),
        (("--symptom", "nan", "--answer", "colour=red"), "no such question"),
        (("--symptom", "nan", "--answer", "lr=fast"), "--answer lr=fast: give a number"),
        (("--symptom", "nan", "--answer", "lr"), "expected KEY=VALUE"),
        (("--answer", "lr=1"), "--answer belongs to"),
    ],
)
def test_what_cannot_be_used_is_one_line_with_the_way_out(arguments: tuple[str, ...], message: str) -> None:
    done = given(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output
