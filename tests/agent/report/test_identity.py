"""Who a process says it is."""

import subprocess
import sys
from pathlib import Path

import pytest

from caboose.report.identity import _script, resolve
from support.processes import clean_environment

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_STEP_NUM_TASKS": "16", "SLURM_JOB_ID": "4711"}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "4711"}


def test_torchrun_gives_rank_world_and_restart_count() -> None:
    who = resolve(TORCHRUN)
    assert (who.rank, who.world, who.attempt) == (3, 8, 2)
    assert who.launch == "none/node0/29500"


def test_slurm_serves_where_torchrun_is_not_used() -> None:
    who = resolve(SLURM)
    assert (who.rank, who.world, who.job) == (5, 16, "slurm-4711")


def test_a_batch_script_that_trains_itself_is_one_process() -> None:
    """sbatch -n 16 sets the number of tasks that the script may start, also where it starts none."""
    who = resolve(BATCH)
    assert (who.rank, who.world, who.job) == (0, 1, "slurm-4711")


def test_torchrun_under_slurm_is_torchruns_rank_and_slurms_job() -> None:
    who = resolve({**SLURM, **TORCHRUN})
    assert (who.rank, who.world, who.job) == (3, 8, "slurm-4711")


def test_explicit_values_go_first() -> None:
    who = resolve({**SLURM, **TORCHRUN, "CABOOSE_JOB": "other"}, job="mine", rank=1, world=2)
    assert (who.job, who.rank, who.world) == ("mine", 1, 2)


@pytest.mark.parametrize(
    ("env", "job"),
    [
        ({"CABOOSE_JOB": "llama-7b"}, "llama-7b"),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "exp12"}, "exp12"),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "a job/with spaces"}, "a-job-with-spaces"),
    ],
)
def test_the_job_is_named_by_what_names_it_best(env: dict[str, str], job: str) -> None:
    assert resolve(env).job == job


@pytest.mark.parametrize("run", ["none", "", "12345", "b6d3b9f0-6c1c-4f3e-9d8e-0d5a4b3c2a19"])
def test_a_run_id_that_nobody_chose_is_no_name(run: str) -> None:
    names = {resolve({**TORCHRUN, "RANK": rank, "TORCHELASTIC_RUN_ID": run}).job for rank in ("0", "7")}

    assert names == {f"{_script()}@{Path.cwd().name}"}


def test_a_run_id_that_the_user_chose_goes_before_slurms_job() -> None:
    assert resolve({**SLURM, **TORCHRUN, "TORCHELASTIC_RUN_ID": "exp12"}).job == "exp12"


def test_each_task_of_a_slurm_array_is_a_job() -> None:
    array = {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "3"}
    assert resolve({**SLURM, **array}).job == "slurm-4700_3"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["train.py"], "train"),
        (["-m", "pkg.run"], "pkg.run"),
        (["-m", "pkg"], "pkg"),
        (["-m", "caboose", "train.py"], "train"),
        (["-m", "caboose", "-m", "pkg.run"], "pkg.run"),
        (["pkg"], "pkg"),
        (["-c", "import train"], "interactive"),
    ],
)
def test_a_job_is_named_by_its_script_or_module_and_the_directory_it_was_started_in(
    tmp_path: Path, arguments: list[str], name: str
) -> None:
    asks = "import os; os.chdir('/'); from caboose.report.identity import resolve; print(resolve({}).job)"
    folder = tmp_path / "exp7"
    (folder / "pkg").mkdir(parents=True)
    for file in ("train.py", "pkg/__init__.py", "pkg/run.py", "pkg/__main__.py"):
        if file != "pkg/__init__.py":
            (folder / file).write_text(f"import caboose.report.identity\n{asks}\n")
    (folder / "pkg/__init__.py").touch()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=clean_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{name}@exp7\n"


KERNEL = "import sys; sys.ps1 = 'In : '; sys.argv[0] = '/bin/ipykernel_launcher.py'; "


@pytest.mark.parametrize(
    ("before", "env", "name"),
    [
        (KERNEL, {"JPY_SESSION_NAME": "/home/me/tune lr.ipynb"}, "tune-lr"),
        (f"{KERNEL} __vsc_ipynb_file__ = '/home/me/probe.ipynb'; ", {}, "probe"),
        (KERNEL, {}, "interactive"),
    ],
)
def test_a_job_of_a_notebook_has_its_name(tmp_path: Path, before: str, env: dict[str, str], name: str) -> None:
    asks = f"{before}from caboose.report.identity import resolve; print(resolve({{}}).job)"
    done = subprocess.run(
        [sys.executable, "-c", asks],
        cwd=tmp_path,
        env=clean_environment(**env),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{name}@{tmp_path.name}\n"


def test_every_process_has_an_incarnation_of_its_own() -> None:
    assert resolve({}).incarnation != resolve({}).incarnation


@pytest.mark.parametrize(
    ("env", "arguments", "named"),
    [
        ({}, {"job": "a b"}, "job='a b'"),
        ({}, {"job": "x" * 129}, "job="),
        ({"CABOOSE_JOB": "a/b"}, {}, "CABOOSE_JOB='a/b'"),
        ({"RANK": "two", "WORLD_SIZE": "4"}, {}, "RANK='two'"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, {}, "rank=4"),
        ({}, {"rank": -1, "world": 2}, "rank=-1"),
    ],
)
def test_what_cannot_be_right_is_named(env: dict[str, str], arguments: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        resolve(env, **arguments)
