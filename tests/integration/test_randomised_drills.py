"""The randomised drills: a fixed generator, a score that can fail, and two draws trained, found and judged again."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caboose_daemon.diagnosis.causes import CAUSES
from caboose_drills.randomised.diseases import DISEASES, FAMILIES, LOOPS
from caboose_drills.randomised.draw import BASES_PER_FAMILY, DRAWS, bases, diseased, draws, half
from support.processes import clean_environment, end

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
PLANNED = {"adversary_too_strong"}
"""True causes that no diagnosis names yet."""


def test_draws_are_distinct_and_do_not_change_from_one_call_to_the_next() -> None:
    first, second = draws(), draws()
    assert first == second
    assert len({draw.id for draw in first}) == len(first) == BASES_PER_FAMILY * len(FAMILIES) + DRAWS * len(DISEASES)


def test_a_diseased_run_differs_from_its_twin_in_the_disease_alone() -> None:
    healthy = {base.id: base for base in bases()}
    for draw in diseased():
        assert replace(draw, id=draw.base, disease="", onset=0, strength=0.0) == healthy[draw.base]


def test_each_loop_has_enough_draws_and_both_halves_have_every_disease() -> None:
    ill = diseased()
    for loop in LOOPS:
        assert sum(draw.loop == loop for draw in ill) >= 5, loop
    for disease in DISEASES:
        mine = [draw for draw in ill if draw.disease == disease.name]
        assert {draw.family for draw in mine} <= set(disease.families)
        assert {draw.loop for draw in mine} <= set(disease.loops)
    assert 0.4 < sum(half(draw.id) == "tune" for draw in ill) / len(ill) < 0.6


def test_true_causes_are_causes_that_a_diagnosis_can_name() -> None:
    known = {cause.id for cause in CAUSES}
    named = {cause for disease in DISEASES for cause in disease.causes}
    assert named - known == PLANNED


@pytest.mark.slow
def test_two_draws_are_trained_found_and_judged_the_same_from_their_recordings(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(BENCH / "randomised.py"),
        "lr_high-06",
        "nan_input-01",
        "--results",
        str(tmp_path / "r"),
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=clean_environment(TMPDIR=str(tmp_path)), stderr=subprocess.PIPE
    )
    try:
        _, errors = process.communicate(timeout=250)
    finally:
        end(process)
    assert process.returncode == 0, errors.decode()
    results = {line["id"]: line for line in map(json.loads, (tmp_path / "r/results.jsonl").read_text().splitlines())}
    assert len(results) == 4, "two draws and their twins"
    assert all("error" not in result["did"] for result in results.values()), results
    live = {name: _rules(result) for name, result in results.items()}
    assert ("non_finite", "critical") in live["nan_input-01"]
    assert live["lr_high-06"]
    assert _replayed(tmp_path / "r") == live


def _rules(result: dict[str, Any]) -> set[tuple[str, str]]:
    return {(finding["rule"], finding["severity"]) for finding in result["findings"]}


def _replayed(directory: Path) -> dict[str, set[tuple[str, str]]]:
    program = (
        "import json, sys, pathlib, recording\n"
        "found = {p.stem: recording.replay(p)[0] for p in pathlib.Path(sys.argv[1]).glob('recordings/*.z')}\n"
        "print(json.dumps({name: [[f['rule'], f['severity']] for f in some] for name, some in found.items()}))"
    )
    output = subprocess.run([sys.executable, "-c", program, str(directory)], cwd=BENCH, capture_output=True, check=True)
    return {name: {(rule, loud) for rule, loud in some} for name, some in json.loads(output.stdout).items()}
