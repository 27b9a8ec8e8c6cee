"""Runs drills under one daemon: starts their processes, follows their progress, and asks the daemon what it found.

Design
------
The drill's process prints a line of JSON now and then; a thread reads them into a queue, so that one that hangs is
noticed by its silence. When it is gone, its jobs are asked for until all have ended and their steps no longer grow: the
daemon then has judged all it will. They are waited for together, since half a second for each seed would be minutes.
Everything that was started is ended when the session closes.
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
"""A drill that says nothing for so long hangs."""
SETTLE_SECONDS = 20.0
"""How long the daemon may take to judge what it was sent."""
STEADY_SECONDS = 0.4

OnProgress = Callable[[float], None]
"""Called with how many seeds are done, as a fraction."""


class Session:
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
        """Runs the drill's process to its end; why seeds failed, where they did."""
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
                problem = f"hangs: nothing was heard of it for {HANG_SECONDS + drill.settle_seconds:.0f} s"
                break
            if line is None:
                break
            told = _parsed(line)
            if "error" in told:
                errors[int(told["seed"])] = str(told["error"])
            elif "step" in told:
                reached[int(told["seed"])] = told["step"] / max(1, told["of"])
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
        """Every incident with its diagnosis: /diagnosis leaves out what is over while anything is open."""
        try:
            answer: list[dict[str, Any]] = self._client.get(f"{path}/incidents")["incidents"]
        except ClientError:
            return None
        return answer

    def _let_settle(self, paths: Sequence[str], *, is_over: bool) -> None:
        """Waits until every job stands still, and is over where it should be; not for ever."""
        last_change = time.monotonic()
        waiting = dict.fromkeys(paths, (-1, last_change))
        while waiting and time.monotonic() - last_change < SETTLE_SECONDS:
            for path, (steps, since) in list(waiting.items()):
                try:
                    detail = self._client.get(path)
                except ClientError:
                    del waiting[path]  # whoever asks for its findings is told why
                    continue
                now = time.monotonic()
                if detail["num_steps"] != steps:
                    waiting[path], last_change = (detail["num_steps"], now), now
                elif now - since >= STEADY_SECONDS and (detail["state"] in ("ended", "failed") or not is_over):
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
    """A line of progress; nothing if it is something else that was printed."""
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) and "seed" in told else {}
