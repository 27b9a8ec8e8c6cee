"""Starts the ranks of jobs/agreeing.py as real processes and reads what they wrote."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.processes import clean_environment, end

GATE_SECONDS = 0.5
JOB = Path(__file__).parent / "jobs" / "agreeing.py"


def results_of_ranks(out: Path, *, num_ranks: int = 3, timeout: float = 90.0) -> list[dict[str, Any]]:
    """What each rank wrote; rank 0 is killed at the end."""
    common = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "GATE_SECONDS": str(GATE_SECONDS)}
    logs = [(out / f"rank{rank}.log").open("wb") for rank in range(num_ranks)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(JOB), str(out)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=clean_environment(**common, RANK=str(rank)),
        )
        for rank, log in enumerate(logs)
    ]
    try:
        for rank, process in enumerate(processes):
            code = process.wait(timeout)
            text = (out / f"rank{rank}.log").read_text()
            assert code == (-signal.SIGKILL if rank == 0 else 0), f"rank {rank} ended with {code}:\n{text[-4000:]}"
    finally:
        for process in processes:
            end(process, patience=1)
        for log in logs:
            log.close()
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(num_ranks)]
