"""Runs the small DDP job of tests/support/jobs and reads back what its ranks wrote."""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support.processes import clean_environment, end, torchrun

JOBS = Path(__file__).parent / "jobs"
SCRIPT = JOBS / "train.py"


@contextlib.contextmanager
def training(
    out: Path, *arguments: str, env: Mapping[str, str], ranks: int = 2, script: Path = SCRIPT
) -> Iterator["subprocess.Popen[bytes]"]:
    """The job, running; ended with the block."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "job.log").open("wb") as log:
        process = subprocess.Popen(
            torchrun(script, str(out), *arguments, ranks=ranks),
            stdout=log,
            stderr=subprocess.STDOUT,
            env=clean_environment(**env),
        )
    try:
        yield process
    finally:
        end(process, patience=10)


def finish(process: "subprocess.Popen[bytes]", out: Path, timeout: float = 90, ranks: int = 2) -> list[dict[str, Any]]:
    """Waits for the job and returns what each rank saw."""
    code = process.wait(timeout)
    assert code == 0, (out / "job.log").read_text()
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(ranks)]
