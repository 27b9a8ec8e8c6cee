"""Runs drills under one daemon: starts their processes, follows their progress, and reads what the daemon found.

Design
------
The drill's process prints JSON lines as progress; a thread reads them into a queue, so that a timeout detects a hang.
After it has ended, its jobs are polled until all have ended and their step counts are stable: the daemon has then
judged all steps. All seeds are awaited together, as half a second each would add up to minutes. Closing the session
ends all processes.
"""

import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Self

from caboose_daemon.ops.drills import results
from caboose_daemon.ops.drills.catalogue import Drill
from caboose_daemon.ops.drills.judge import DrillOutcome, judge
from caboose_daemon.ops.drills.results import Result
from caboose_daemon.ops.processes import end, start, start_daemon, tail
from caboose_daemon.out.api.client import Client, ClientError

HANG_SECONDS = 120.0
"""A drill without progress for this long is taken to hang."""
SETTLE_SECONDS = 20.0
"""How long the daemon may take to judge the last steps."""
STEADY_SECONDS = 0.4

OnProgress = Callable[[float], None]
"""Called with the number of seeds done, with fractions."""


class DrillSession:
    """A daemon, and the drills that report to it one after the other."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="caboose-drill-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._endpoint = ""
        self._client = Client("127.0.0.1:0")

    def __enter__(self) -> Self:
        try:
            daemon, self._endpoint, url = start_daemon(self._directory)
        except BaseException:
            self.close()
            raise
        self._processes.append(daemon)
        self._client = Client(url)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process and removes every file."""
        for process in reversed(self._processes):
            end(process)
        self._processes.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    def run(self, drill: Drill, seeds: Sequence[int], on_progress: OnProgress = lambda _: None) -> Result:
        """Trains every seed and judges what was found."""
        began = time.monotonic()
        errors = self._train(drill, seeds, on_progress)
        time.sleep(drill.settle_seconds)
        self._let_settle([_path(drill, seed) for seed in seeds if seed not in errors], is_over=not drill.may_fail)
        outcomes = []
        for seed in seeds:
            if seed in errors:
                outcomes.append(DrillOutcome(seed=seed, error=errors[seed]))
            else:
                outcomes.append(self._ask(drill, seed))
        seconds = round(time.monotonic() - began, 1)
        return Result(drill=drill, outcomes=tuple(outcomes), seconds=seconds, measured=results.now())

    def _train(self, drill: Drill, seeds: Sequence[int], on_progress: OnProgress) -> dict[int, str]:
        """Runs the drill's process to its end; returns the errors by seed."""
        log = self._directory / f"{drill.name}.log"
        command = [sys.executable, "-m", "caboose_drills", "run", drill.name]
        command += ["--seeds", ",".join(str(seed) for seed in seeds), "--prefix", _prefix(drill)]
        env = {"CABOOSE_ENDPOINT": self._endpoint, "OMP_NUM_THREADS": "1", "TMPDIR": str(self._directory)}
        process = start(command, self._directory, log, env, stdout=subprocess.PIPE)
        self._processes.append(process)
        assert process.stdout is not None
        lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(process.stdout, lines), name="drill-reader", daemon=True)
        reader.start()
        errors: dict[int, str] = {}
        reached: dict[int, float] = {}
        problem = ""
        while True:
            try:
                line = lines.get(timeout=HANG_SECONDS + drill.settle_seconds)
            except queue.Empty:
                problem = f"hangs: no progress for {HANG_SECONDS + drill.settle_seconds:.0f} s"
                break
            if line is None:
                break
            progress = _parsed(line)
            if "error" in progress:
                errors[int(progress["seed"])] = str(progress["error"])
            elif "step" in progress:
                reached[int(progress["seed"])] = progress["step"] / max(1, progress["of"])
                on_progress(sum(reached.values()))
        end(process)
        self._processes.remove(process)
        reader.join(5.0)
        process.stdout.close()
        if not problem and process.returncode and not errors and not drill.may_fail:
            problem = f"ended with exit code {process.returncode}"
        if problem:
            for seed in seeds:
                if reached.get(seed, 0.0) < 1.0:
                    errors.setdefault(seed, f"{problem}:\n{tail(log)}")
        return {} if drill.may_fail and not problem else errors

    def _ask(self, drill: Drill, seed: int) -> DrillOutcome:
        path = _path(drill, seed)
        try:
            findings = self._client.get(f"{path}/findings")["findings"]
        except ClientError as error:
            return DrillOutcome(seed=seed, error=f"the daemon does not know the job: {error}")
        return judge(drill, seed, findings, self._incidents(path))

    def _incidents(self, path: str) -> list[dict[str, Any]] | None:
        """Every incident with its diagnosis: /diagnosis leaves out closed ones while one is open."""
        try:
            answer: list[dict[str, Any]] = self._client.get(f"{path}/incidents")["incidents"]
        except ClientError:
            return None
        return answer

    def _let_settle(self, paths: Sequence[str], *, is_over: bool) -> None:
        """Waits until no job takes steps any more, and has ended if `is_over`; up to a limit."""
        last_change = time.monotonic()
        waiting = dict.fromkeys(paths, (-1, last_change))
        while waiting and time.monotonic() - last_change < SETTLE_SECONDS:
            for path, (steps, since) in list(waiting.items()):
                try:
                    detail = self._client.get(path)
                except ClientError:
                    del waiting[path]  # reading its findings reports the error
                    continue
                now = time.monotonic()
                if detail["num_steps"] != steps:
                    waiting[path], last_change = (detail["num_steps"], now), now
                elif now - since >= STEADY_SECONDS and (detail["state"] in ("ended", "crashed") or not is_over):
                    del waiting[path]
            time.sleep(0.05)


def _prefix(drill: Drill) -> str:
    return f"drill-{drill.name}"


def _path(drill: Drill, seed: int) -> str:
    return f"/api/v1/jobs/{_prefix(drill)}-{seed}"


def _read(stream: IO[bytes], lines: "queue.SimpleQueue[bytes | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _parsed(line: bytes) -> dict[str, Any]:
    """A line of progress; empty for other output."""
    try:
        progress = json.loads(line)
    except ValueError:
        return {}
    return progress if isinstance(progress, dict) and "seed" in progress else {}
