"""Who a process says it is."""

import socket

import pytest

from caboose.report.identity import resolve

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "4711"}


def test_torchrun_gives_rank_world_and_restart_count() -> None:
    who = resolve(TORCHRUN)
    assert (who.rank, who.world, who.attempt) == (3, 8, 2)
    assert who.launch == "none/node0/29500"


def test_slurm_serves_where_torchrun_is_not_used() -> None:
    who = resolve(SLURM)
    assert (who.rank, who.world, who.job) == (5, 16, "slurm-4711")


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


def test_torchruns_default_run_id_is_no_name() -> None:
    assert resolve(TORCHRUN).job.endswith("@node0")


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.0.1.1", "::1", ""])
def test_an_address_that_every_machine_has_is_no_name(address: str) -> None:
    (name,) = {resolve({**TORCHRUN, "RANK": rank, "MASTER_ADDR": address}).job for rank in ("0", "7")}

    assert name.endswith(f"@{socket.gethostname()}")


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
