"""Ranks of one launch have one proof, restarted ones too, and nobody else has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from caboose.report import launch_secret
from caboose.report.identity import Identity
from support.processes import clean_environment

WHO = Identity("train", 0, 2)
GIVEN = {"CABOOSE_LAUNCH_SECRET": "a secret of the launcher's script"}
RANK = """
import os
from caboose.report import identity, launch_secret
print(launch_secret.proof(os.environ, identity.resolve(os.environ, job="train")))
"""
LAUNCHER = """
import os, subprocess, sys
rank = [sys.executable, "-c", sys.argv[1]]
wrapped = ["sh", "-c", '"$@"; true', "sh", *rank]
for command, number in ((rank, 0), (wrapped, 1), (rank, 1)):
    own = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": sys.argv[2]}
    ended = subprocess.run(command, env={**os.environ, **own}, check=True, capture_output=True, text=True)
    print(ended.stdout.strip())
"""


def launch(local_world: int = 2, **env: str) -> list[str]:
    """The proofs of rank 0, of rank 1 behind a wrapper script, and of rank 1 again."""
    ended = subprocess.run(
        [sys.executable, "-c", LAUNCHER, RANK, str(local_world)],
        env=clean_environment(**env),
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.stdout.splitlines()


@pytest.mark.long
@pytest.mark.slow
def test_the_ranks_of_a_launcher_have_one_proof_and_another_launcher_has_another() -> None:
    first, second = launch(), launch()
    assert len(set(first)) == 1
    assert len(first[0]) == 64
    assert len(set(second)) == 1
    assert first[0] != second[0]


FIRST_RANK = """
import os, subprocess, sys
os.environ.update({"LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})
command = [sys.executable, "-c", sys.argv[1] + "import sys; sys.stdin.read()"]
other = subprocess.Popen(command, env={**os.environ, "LOCAL_RANK": "1"}, stdin=subprocess.PIPE)
exec(sys.argv[1])
other.communicate()
"""


def test_a_rank_that_starts_the_others_itself_has_their_proof() -> None:
    """As Lightning's own launcher: rank 0 is the process that the user started."""
    command = [sys.executable, "-c", FIRST_RANK, RANK]
    ended = subprocess.run(command, env=clean_environment(), check=True, capture_output=True, text=True, timeout=60)
    first, second = ended.stdout.split()
    assert len(first) == 64
    assert first == second


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
def test_files_of_launchers_that_are_gone_are_removed(tmp_path: Path) -> None:
    for _ in range(3):
        launch(XDG_STATE_HOME=str(tmp_path))
    (file,) = (tmp_path / "caboose" / "launches").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
def test_ranks_on_several_hosts_have_one_only_if_the_launcher_gives_it() -> None:
    assert launch(local_world=1) == ["", "", ""]
    assert len(set(launch(local_world=1, **GIVEN))) == 1


def test_the_proof_is_of_one_job_and_not_the_secret() -> None:
    proof = launch_secret.proof(GIVEN, WHO)
    assert proof == launch_secret.proof(GIVEN, Identity("train", 1, 2))
    assert proof != launch_secret.proof(GIVEN, Identity("other", 0, 2))
    assert proof != launch_secret.proof({"CABOOSE_LAUNCH_SECRET": "a secret of another launch"}, WHO)
    assert GIVEN["CABOOSE_LAUNCH_SECRET"] not in proof


def test_a_secret_that_is_too_short_is_named() -> None:
    with pytest.raises(ValueError, match=r"CABOOSE_LAUNCH_SECRET has 5 characters; use at least 16"):
        launch_secret.proof({"CABOOSE_LAUNCH_SECRET": "short"}, WHO)


def test_a_directory_that_cannot_be_written_is_no_error() -> None:
    assert launch_secret.proof({"XDG_STATE_HOME": os.devnull, "LOCAL_WORLD_SIZE": "2"}, WHO) == ""
