"""The drills: complete, consistent, and one of them trained end to end as `caboose drill` does it."""

import json
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

import caboose_drills
from caboose_daemon.rules import RULES
from caboose_drills.catalogue import DRILLS, HEALTHY
from support.processes import caboose_command, clean_environment, end, wait_until

SHARED = {"__init__", "__main__", "catalogue", "data", "drill", "experts", "launch", "loop", "nets", "run"}
"""Modules that are no drills."""
OF_THE_DEMO = {"demo", "text", "transformer"}
MISSING: set[str] = set()
"""Rules without a drill so far."""
KNOWN = {rule.name for rule in RULES}


def test_every_rule_has_a_drill_but_those_still_missing() -> None:
    assert KNOWN - {drill.rule for drill in DRILLS} == MISSING


def test_every_drill_is_a_file_of_its_name_and_every_file_is_in_the_catalogue() -> None:
    folder = Path(caboose_drills.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - SHARED - OF_THE_DEMO
    assert files == {drill.name for drill in DRILLS}
    twins = {path.stem for path in (folder / "healthy").glob("*.py")} - {"__init__"}
    assert twins == {drill.name for drill in HEALTHY}
    assert len(HEALTHY) <= 9


def test_drills_name_only_rules_that_there_are_and_expect_no_rule_twice() -> None:
    for drill in DRILLS:
        assert drill.rule in KNOWN, drill.name
        assert set(drill.companions) <= KNOWN - {drill.rule}, drill.name
        assert drill.causes, drill.name
        assert 0 <= drill.fault_step < drill.steps, drill.name
        assert all(rank < drill.ranks for rank in drill.origin_ranks), drill.name
        assert drill.severity in ("info", "warning", "critical"), drill.name
    for twin in HEALTHY:
        assert (twin.rule, twin.causes, twin.companions) == ("", (), ()), twin.name


def drilling(tmp_path: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        caboose_command("drill", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(TMPDIR=str(tmp_path)),
    )


@pytest.mark.slow
@pytest.mark.long
def test_a_drill_is_trained_found_and_judged_and_nothing_is_left_behind(tmp_path: Path) -> None:
    process = drilling(tmp_path, "dead_units", "--json")
    try:
        output, errors = process.communicate(timeout=100)
    finally:
        end(process)
    assert process.returncode == 0, errors
    (result,) = json.loads(output)["results"]
    (outcome,) = result["outcomes"]
    assert result["drill"]["name"] == "dead_units"
    assert outcome["found"], outcome
    assert outcome["origin"] is True
    assert "dead_units" in outcome["spoke"]
    assert "layer2.activation" in outcome["summary"]
    assert not list(tmp_path.iterdir()), "its files are removed"


QUICK = ("eval_mode", "lr_too_high", "gradient_vanishing", "saturation", "non_finite", "frozen_unregistered")
OF_A_BUSY_MACHINE = {"straggler", "data_starved", "throughput_regression", "monitor_blind"}
"""What may be true here, where tests run side by side."""


@pytest.mark.long
@pytest.mark.slow
def test_diseases_are_found_under_their_names_as_one_incident_each_with_their_cause(tmp_path: Path) -> None:
    process = drilling(tmp_path, *QUICK, "mlp_classifier", "--json")
    try:
        output, errors = process.communicate(timeout=250)
    finally:
        end(process)
    results = json.loads(output)["results"]
    assert {result["drill"]["name"] for result in results} == {*QUICK, "mlp_classifier"}, errors
    for result in results:
        (outcome,) = result["outcomes"]
        name = result["drill"]["name"]
        assert set(outcome["wrong"]) <= OF_A_BUSY_MACHINE, (name, outcome)
        if name in QUICK:
            assert outcome["found"], (name, outcome)
            assert outcome["cause_rank"] in (1, 2), (name, outcome)
            assert outcome["num_incidents"] == 1, (name, outcome)
            assert outcome["origin"] is not False, (name, outcome)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
def test_an_unknown_drill_is_named_with_those_there_are(tmp_path: Path) -> None:
    process = drilling(tmp_path, "dead_unit")
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        end(process)
    assert process.returncode == 2
    assert "no drill 'dead_unit'; known: " in errors
    assert all(drill.name in errors for drill in DRILLS + HEALTHY)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_drill_of_several_ranks_leaves_no_process_behind(tmp_path: Path, number: int) -> None:
    process = drilling(tmp_path, "rank_outlier", "--seeds", "50")
    try:

        def started() -> list[psutil.Process]:
            family = psutil.Process(process.pid).children(recursive=True)
            return family if len(family) >= 6 else []  # daemon, launcher, torchrun, three ranks

        family = wait_until(started, 90)
        assert family
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
    finally:
        end(process)
    assert process.returncode == 128 + number, output + errors
    assert wait_until(lambda: not [member for member in family if member.is_running()], 5)
    assert not list(tmp_path.iterdir())
