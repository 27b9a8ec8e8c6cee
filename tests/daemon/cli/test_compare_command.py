"""`caboose compare` puts runs side by side, and says no more of their differences than they are evidence for."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from caboose_daemon.cli import caboose
from caboose_wire import Event
from support.scenario import JournaledCore, scenario
from support.written_logs import falling, written

Make = Callable[..., JournaledCore]


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(caboose, ["compare", *arguments])


def compared(*runs: str) -> dict[str, Any]:
    done = ran(*runs, "--json")
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def said(answer: dict[str, Any], kind: str | None = None) -> str:
    return "\n".join(s["text"] for s in answer["statements"] if kind in (None, s["kind"]))


# Losses


def test_losses_are_compared_at_the_last_step_that_all_reached(tmp_path: Path) -> None:
    short = written(tmp_path, "short", falling(400, 1.0, tau=80))
    long = written(tmp_path, "long", falling(1000, 0.5, tau=400))

    answer = compared(short, long)

    assert answer["common_step"] == 399
    a, b = answer["runs"]
    assert a["at_common"]["value"] < b["at_common"]["value"]
    assert b["final"]["value"] < a["final"]["value"], "it ends lower, but it had more steps"
    assert "A has the lowest loss at step 399" in said(answer)


def test_noise_is_not_called_a_difference(tmp_path: Path) -> None:
    runs = [written(tmp_path, f"run{seed}", falling(600, 1.0, noise=0.1, seed=seed)) for seed in (1, 2)]

    text = said(compared(*runs))

    assert "no clear difference between A and B" in text
    assert "was reached at about the same step" in text


def test_speed_is_steps_to_the_loss_that_all_that_learn_have_reached(tmp_path: Path) -> None:
    fast = written(tmp_path, "fast", falling(600, 1.0, tau=50))
    slow = written(tmp_path, "slow", falling(600, 1.0, tau=150))
    never = written(tmp_path, "never", np.full(600, 6.0) + np.random.default_rng(0).normal(0, 0.01, 600))

    answer = compared(fast, slow, never)

    assert answer["common_loss"] == pytest.approx(1.07, abs=0.1), "the run that learns nothing sets no goal"
    steps = [run["steps_to_common"] for run in answer["runs"]]
    assert steps[2] is None
    assert 2 * steps[0] < steps[1]
    assert f"A reached the common loss of {answer['common_loss']:.4g} first" in said(answer)
    assert "C never reached" in said(answer)


def test_a_step_that_was_taken_again_counts_once(tmp_path: Path) -> None:
    steps = [*range(300), *range(200, 500)]
    losses = np.concatenate([falling(300, 3.0), falling(500, 1.0)[200:]])

    answer = compared(written(tmp_path, "resumed", losses, steps=steps), written(tmp_path, "whole", falling(500, 1.0)))

    resumed = answer["runs"][0]
    assert (resumed["num_attempts"], resumed["num_retaken"]) == (2, 100)
    assert resumed["best"] < 2, "what the first attempt showed of these steps is left out"


def test_spikes_and_numbers_that_are_not_finite_are_told_of_the_runs_that_have_them(tmp_path: Path) -> None:
    spiky, broken = falling(600, 1.0), falling(600, 1.0, seed=1)
    spiky[400:406] += np.linspace(8, 1, 6)
    broken[300:303] = np.nan

    text = said(
        compared(
            written(tmp_path, "calm", falling(600, 1.0, seed=2)),
            written(tmp_path, "spiky", spiky),
            written(tmp_path, "broken", broken),
        )
    )

    assert "loss spikes only in B (1)" in text
    assert "non-finite numbers in C (3 steps)" in text


def diverged(num: int, at: int, floor: float = 1.0, end: int | None = None) -> Any:
    losses = falling(num, floor, tau=60, seed=3)
    losses[at:end] = np.nan
    return losses


@pytest.mark.parametrize("at", [450, 599], ids=["goes on for long", "stops at the first"])
def test_a_run_that_died_of_nan_ranks_last_and_its_setting_is_not_recommended(tmp_path: Path, at: int) -> None:
    runs = [
        written(tmp_path, "fast", diverged(600, at, 0.2), lr=0.1, validations={99: 0.1}, hidden=64),
        written(tmp_path, "slow", falling(700, 1.0), lr=0.001, validations={99: 2.0}, hidden=64),
        written(tmp_path, "slower", falling(700, 1.5, tau=300), lr=0.0001, validations={99: 2.5}, hidden=64),
    ]

    answer = compared(*runs)

    a, b, _ = answer["runs"]
    assert (a["at_common"], a["final"], a["not_finite_since"]) == (None, None, at)
    assert b["not_finite_since"] is None
    text = said(answer)
    assert f"A: loss not finite since step {at}; ranked last" in text
    assert "B has the lowest loss at step 599" in text
    assert "B has the best validation loss" in text
    assert "A (0.1) and B (0.001): 0.001 is better, since A is not finite" in text
    assert "lower was better each time" not in text
    assert "0.1 is better" not in text
    assert "A reached the common loss" not in text
    page = ran(*runs).stdout
    assert re.search(r"loss at step 599 +not finite +1\.\S+ \* ", page)
    assert re.search(rf"not finite since step +{at} +- +-", page)
    assert re.search(r"best loss +0\.\S+ +1\.\S+ \* ", page), "what it was before it died does not count"
    assert re.search(r"spikes +0 +0 +0 *\n", page), "equals have no star"


def test_a_run_that_dies_after_the_common_step_ranks_last_too(tmp_path: Path) -> None:
    answer = compared(
        written(tmp_path, "dead", diverged(600, 500, 0.2), hidden=64),
        written(tmp_path, "short", falling(300, 1.0), hidden=128),
    )

    dead = answer["runs"][0]
    assert dead["at_common"]["value"] == pytest.approx(0.25, abs=0.1)
    assert (dead["final"], dead["not_finite_since"]) == (None, 500)
    assert "A (64) and B (128): 128 is better, since A is not finite" in said(answer)


def test_runs_that_all_died_are_not_told_apart(tmp_path: Path) -> None:
    text = said(
        compared(
            written(tmp_path, "one", diverged(600, 0), hidden=64),
            written(tmp_path, "other", diverged(600, 400), hidden=128),
        )
    )

    assert "A: loss not finite since step 0" in text
    assert "A (64) and B (128): neither is finite" in text


def test_some_steps_that_are_not_finite_are_no_death(tmp_path: Path) -> None:
    answer = compared(
        written(tmp_path, "holes", diverged(600, 590, 0.2, end=595), hidden=64),
        written(tmp_path, "whole", falling(600, 1.0), hidden=128),
    )

    assert answer["runs"][0]["not_finite_since"] is None
    assert "A (64) and B (128): 64 is better" in said(answer)


def test_a_correlation_counts_runs_that_died_as_the_worst(tmp_path: Path) -> None:
    runs = [
        written(tmp_path, f"r{i}", falling(300, 2.0 - 0.2 * i, seed=i), lr=1e-3, decay=10.0 ** (i - 8))
        for i in range(5)
    ]
    runs += [written(tmp_path, f"d{i}", diverged(300, 200, 0.1), lr=1e-3, decay=10.0 ** (i - 3)) for i in range(3)]

    assert "the higher decay, the lower the loss" not in said(compared(*runs))
    assert "the higher decay, the lower the loss" in said(compared(*runs[:5]))


def test_a_job_whose_losses_are_nan_is_found_dead_and_one_whose_gradients_overflow_is_not(
    journaled: Make, tmp_path: Path
) -> None:
    core = journaled()
    nan = float("nan")
    scenario(ranks=2, core=core, job="dead", config={"hidden": 64}).healthy(60).losses(*[nan] * 30)
    scenario(ranks=2, core=core, job="well", config={"hidden": 128}).healthy(89).plays(
        1, loss=None, arrays={"grad_norm": np.full(4, np.inf, np.float32)}
    )
    file = tmp_path / "journal.sqlite"

    answer = compared(f"{file}:dead", f"{file}:well")

    assert [run["not_finite_since"] for run in answer["runs"]] == [61, None]


# Settings


def test_a_setting_that_differs_alone_is_evidence_and_one_pair_is_said_to_be_one(tmp_path: Path) -> None:
    runs = [
        written(tmp_path, "low", falling(600, 1.0), weight_decay=0.01, hidden=64),
        written(tmp_path, "high", falling(600, 1.5, seed=1), weight_decay=0.1, hidden=64),
    ]

    text = said(compared(*runs), "setting")

    assert "weight_decay is the only difference in 1 pair: A (0.01) and B (0.1): 0.01 is better" in text
    assert "another seed may give another result" in text


def test_settings_that_never_differ_alone_are_not_told_apart(tmp_path: Path) -> None:
    runs = [
        written(tmp_path, "one", falling(600, 1.0), weight_decay=0.01, hidden=64),
        written(tmp_path, "other", falling(600, 1.5, seed=1), weight_decay=0.1, hidden=128),
    ]

    text = said(compared(*runs), "setting")

    assert "is the only difference" not in text
    assert "weight_decay and hidden never differ alone" in text


def test_no_difference_smaller_than_that_of_repeated_runs_is_read_as_one(tmp_path: Path) -> None:
    runs = [
        written(tmp_path, "first", falling(600, 1.0), hidden=64, seed=0),
        written(tmp_path, "again", falling(600, 1.3, seed=1), hidden=64, seed=1),
        written(tmp_path, "wider", falling(600, 1.2, seed=2), hidden=128, seed=0),
    ]

    answer = compared(*runs)

    assert "runs with equal settings differ by 0.297" in said(answer, "caution")
    assert "B (64) and C (128): no clear difference" in said(answer, "setting")


def test_runs_of_equal_settings_are_not_ranked(tmp_path: Path) -> None:
    runs = [
        written(tmp_path, "first", falling(600, 1.0), hidden=64, seed=0, validations={99: 2.0}),
        written(tmp_path, "again", falling(600, 1.3, tau=400, seed=1), hidden=64, seed=1, validations={99: 2.5}),
    ]

    text = said(compared(*runs))

    assert "lowest loss" not in text
    assert "no clear difference between A and B" in text
    assert "is chance, since their settings are equal" in text
    assert "first, at step" not in text
    assert "has the best validation loss" not in text
    assert "*" not in ran(*runs).stdout, "no line has a best"


def test_one_seed_each_is_said_where_no_run_was_repeated(tmp_path: Path) -> None:
    one, other = falling(600, 1.0), falling(600, 1.5, seed=1)

    apart = compared(written(tmp_path, "a", one, hidden=64), written(tmp_path, "b", other, hidden=128))
    alike = compared(written(tmp_path, "c", one, hidden=64), written(tmp_path, "d", one + 0.001, hidden=128))

    assert "more than each run's noise (one seed each)" in said(apart, "result")
    assert "within each run's noise (one seed each)" in said(alike, "result")


def test_a_correlation_needs_five_runs(tmp_path: Path) -> None:
    def sweep(num: int) -> dict[str, Any]:
        decays = [10.0 ** (i - 6) for i in range(num)]
        return compared(
            *(
                written(tmp_path, f"r{i}", falling(300, 1.0 + 0.2 * i, seed=i), lr=1e-3, decay=decay)
                for i, decay in enumerate(decays)
            )
        )

    assert "the higher decay, the higher the loss: rank correlation +1.00 over 6 runs" in said(sweep(6))
    assert "correlation" not in said(sweep(4))


def test_the_batch_counts_as_a_whole_and_a_larger_one_is_cautioned_about(tmp_path: Path) -> None:
    runs = [
        written(tmp_path, "few", falling(300, 1.0), batch_size=64, world=4),
        written(tmp_path, "many", falling(300, 1.0, seed=1), batch_size=32, world=8),
        written(tmp_path, "more", falling(300, 1.0, seed=2), batch_size=256, world=8),
    ]

    equal = compared(*runs[:2])
    assert "batch sizes differ" not in said(equal)
    assert "batch_size is the only difference" not in said(equal), "it is the whole batch that could matter"
    answer = compared(*runs)
    assert "batch sizes differ" in said(answer, "caution")
    assert answer["runs"][2]["samples_per_step"] == 2048


def test_accumulated_gradients_make_a_larger_batch(tmp_path: Path) -> None:
    runs = [
        written(tmp_path, "wide", falling(300, 1.0), batch_size=64, world=4),
        written(tmp_path, "long", falling(300, 1.0, seed=1), batch_size=16, world=4, gradient_accumulation_steps=4),
        written(tmp_path, "more", falling(300, 1.0, seed=2), batch_size=64, world=4, accumulate_grad_batches=2),
    ]

    answer = compared(*runs)

    assert [run["samples_per_step"] for run in answer["runs"]] == [256, 256, 512]
    assert "batch sizes differ" not in said(compared(*runs[:2]))
    assert "batch sizes differ" in said(answer, "caution")


def test_what_the_steps_told_of_their_samples_comes_before_the_settings(journaled: Make, tmp_path: Path) -> None:
    core = journaled()
    for job, samples in (("one", 48), ("two", None)):
        story = scenario(ranks=2, core=core, job=job, noise=0.01, config={"batch_size": 16})
        story.meanwhile(num_samples=samples).healthy(60)
    file = tmp_path / "journal.sqlite"

    answer = compared(f"{file}:one", f"{file}:two")

    assert [run["samples_per_step"] for run in answer["runs"]] == [96, 32]


def test_losses_that_may_be_of_two_kinds_are_cautioned_about(tmp_path: Path) -> None:
    one = written(tmp_path, "one", falling(300, 1.0), num_classes=10)
    other = written(tmp_path, "other", falling(300, 1.0), num_classes=1000)

    assert "num_classes differ: the losses may not be comparable" in said(compared(one, other))


# Validation against size


def of_sizes(tmp_path: Path, validations: list[float], trains: list[float]) -> dict[str, Any]:
    runs = []
    for i, (checked, train) in enumerate(zip(validations, trains, strict=True)):
        at = dict.fromkeys(range(99, 300, 100), checked)
        runs.append(
            written(tmp_path, f"s{i}", falling(300, train, tau=30), validations=at, num_parameters=10 ** (3 + i))
        )
    answer: dict[str, Any] = compared(*runs)["validation_against_size"]
    return answer


def test_double_descent_is_said_with_a_peak_where_models_begin_to_fit_everything(tmp_path: Path) -> None:
    answer = of_sizes(tmp_path, [1.2, 0.9, 1.6, 0.8, 0.6], [1.0, 0.7, 0.1, 0.02, 0.01])

    assert answer["verdict"] == "double descent"
    assert [size["num_parameters"] for size in answer["sizes"]] == [10**i for i in range(3, 8)]


def test_a_bump_that_the_training_loss_does_not_explain_is_a_bump(tmp_path: Path) -> None:
    assert of_sizes(tmp_path, [1.2, 0.9, 1.6, 0.8, 0.6], [1.0, 0.95, 0.9, 0.8, 0.7])["verdict"] == "bump"


@pytest.mark.parametrize(
    ("validations", "verdict"),
    [
        ([1.2, 1.6, 0.8], "too few"),
        ([1.4, 1.2, 1.0, 0.8], "falls"),
        ([0.8, 1.0, 1.2, 1.4], "rises"),
        ([1.4, 1.0, 0.8, 1.2], "u-shape"),
        ([1.0, 1.003, 0.998, 1.001], "flat"),
    ],
)
def test_no_other_course_is_called_double_descent(tmp_path: Path, validations: list[float], verdict: str) -> None:
    trains = [1.0, 0.4, 0.1, 0.01][: len(validations)]

    assert of_sizes(tmp_path, validations, trains)["verdict"] == verdict


def test_two_turns_over_time_are_told_and_a_drop_of_the_rate_is_blamed_where_there_was_one(tmp_path: Path) -> None:
    course = np.interp(np.arange(20), [0, 5, 11, 19], [2.0, 1.0, 1.8, 0.9])
    checked = {50 * i + 49: float(v) for i, v in enumerate(course)}
    rates = np.where(np.arange(1000) < 700, 1e-3, 1e-4)

    steady = written(tmp_path, "steady", falling(1000, 0.1), lr=1e-3, validations=checked)
    dropped = written(tmp_path, "dropped", falling(1000, 0.1), lr=rates, validations=checked)
    text = said(compared(steady, dropped))

    assert "validation in A turned twice" in text
    assert "with no drop of the learning rate: double descent over time" in text
    assert "validation in B turned twice" in text
    assert "the learning rate fell in between" in text


# Where runs come from


def test_jobs_of_a_journal_come_with_the_settings_they_introduced_themselves_with(
    journaled: Make, tmp_path: Path
) -> None:
    core = journaled()
    for job, hidden, level in (("narrow", 64, 2.0), ("wide", 256, 1.0)):
        story = scenario(ranks=2, core=core, job=job, level=level, noise=0.01, config={"hidden": hidden})
        story.healthy(60).says(0, Event(attempt=0, step=60, time=story.now, kind="validation", fields={"loss": level}))
        story.healthy(1)
    file = tmp_path / "journal.sqlite"

    answer = compared(f"{file}:narrow", f"{file}:wide")

    assert [run["name"] for run in answer["runs"]] == ["narrow", "wide"]
    assert answer["differing"]["hidden"] == [64, 256]
    assert [run["validation_best"] for run in answer["runs"]] == [2.0, 1.0]
    assert "hidden is the only difference in 1 pair: A (64) and B (256): 256 is better" in said(answer)
    assert len(compared(str(file))["runs"]) == 2, "a journal without a job's name is all of its jobs"


def test_a_journal_is_only_read(journaled: Make, tmp_path: Path) -> None:
    for job in ("one", "two"):
        scenario(ranks=1, core=journaled(), job=job).healthy(30)
    file = tmp_path / "journal.sqlite"
    before = file.read_bytes()

    compared(str(file))

    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        (["missing.csv", "missing.csv"], "missing.csv: no such file"),
        (["{tmp}/one.csv"], "one run; name two or more"),
        (["{tmp}/one.csv:job", "{tmp}/one.csv"], "is not a journal, so it has no job 'job'"),
        (["{tmp}/empty.csv", "{tmp}/one.csv"], "empty"),
        (["{tmp}/one.csv", "job", "--daemon", "127.0.0.1:9"], "no daemon answers at http://127.0.0.1:9"),
    ],
)
def test_a_run_that_cannot_be_had_is_named_in_one_line(tmp_path: Path, runs: list[str], says: str) -> None:
    written(tmp_path, "one", falling(50, 1.0))
    (tmp_path / "empty.csv").write_text("")

    done = ran(*(run.format(tmp=tmp_path) for run in runs))

    assert done.exit_code == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_job_that_a_journal_does_not_hold_is_answered_with_those_it_does(journaled: Make, tmp_path: Path) -> None:
    scenario(ranks=1, core=journaled(), job="llama").healthy(30)

    done = ran(f"{tmp_path}/journal.sqlite:lama", f"{tmp_path}/journal.sqlite:llama")

    assert done.exit_code == 2
    assert "no job 'lama'; it holds llama" in done.stderr


# For people


def test_the_page_fits_into_eighty_columns_however_many_runs_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caboose_daemon.cli.options.PIPED_WIDTH", 80)
    runs = [written(tmp_path, f"a-run-of-a-rather-long-name-{i}", falling(200, 1.0 + i), hidden=2**i) for i in range(7)]

    done = ran(*runs)

    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80
    for text in ("loss at step 199", "spikes", "settings that differ", "hidden", "*"):
        assert text in done.stdout
    assert all(f"\n{letter}  a-run" in f"\n{done.stdout}" for letter in "ABCDEFG")


# Settings that nobody knows


def test_runs_without_known_settings_are_not_taken_for_repeats(tmp_path: Path) -> None:
    runs = [written(tmp_path, f"run{i}", falling(600, 1.0 + i, seed=i), lr=1e-3) for i in (0, 1)]

    answer = compared(*runs)

    assert "A has the lowest loss" in said(answer), "the rate in their curves is no proof of equal settings"
    assert "equal" not in said(answer)
    assert "no settings known for A and B" in said(answer)
    assert "no known setting differs" not in said(answer)


def test_a_setting_that_one_run_alone_reports_may_differ(tmp_path: Path) -> None:
    a = written(tmp_path, "a", falling(600, 1.0, seed=0), optimizer="AdamW", weight_decay=0.1)
    b = written(tmp_path, "b", falling(600, 2.0, seed=1), optimizer="AdamW")

    answer = compared(a, b)

    assert "A has the lowest loss" in said(answer)
    assert "their settings are equal" not in said(answer)


def test_runs_of_equal_known_settings_are_repeats(tmp_path: Path) -> None:
    runs = [written(tmp_path, f"r{i}", falling(600, 1.0 + i / 10, seed=i), optimizer="AdamW", seed=i) for i in (0, 1)]

    assert "chance, since their settings are equal" in said(compared(*runs))
