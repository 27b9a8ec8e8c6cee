"""Trains with almost no descriptors, threads or memory left; each case is a forked child, so torch is imported once.

Prints one line of JSON per case, in order: its exit code, its losses and what it logged. The case "bare" is the
parent's own run, without Caboose; it also imports what torch imports late.
"""

import atexit
import contextlib
import json
import logging
import os
import resource
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch

import caboose
from caboose.report import resources

STEPS = 40
LIMIT = 128
HUGE = 1 << 33
"""Address space of a Python thread's stack, where no thread can be started."""


def taken(num_free: int) -> list[int]:
    """All descriptors up to the limit but so many."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    held: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.dup(1))
    for _ in range(num_free):
        os.close(held.pop())
    return held


def limit_memory(num_bytes: int) -> None:
    """Leaves so much address space beside what is used."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + num_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]))


class Starved:
    """Takes the resource of a case away, and gives it back."""

    def __init__(self, case: str) -> None:
        self._what, _, number = case.partition(":")
        self._held: list[int] = []
        if self._what == "descriptors":
            self._held = taken(int(number))
        elif self._what == "threads":
            threading.stack_size(HUGE)
            limit_memory(HUGE // 2)
        elif self._what == "processes":  # as another user: root has no such limit
            os.setuid(64_321)
            resource.setrlimit(resource.RLIMIT_NPROC, (int(number), resource.getrlimit(resource.RLIMIT_NPROC)[1]))
        elif self._what == "memory":
            limit_memory(int(number))

    def relieve(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)
        threading.stack_size(0)
        if self._what == "threads":
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def train(case: str, options: dict[str, Any], relieved_at: int, step_seconds: float) -> list[str]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    starved = Starved(case)
    monitor = caboose.attach(model, optimizer, job="starved", **options)
    losses = []
    for step in range(STEPS):
        if step == relieved_at:
            starved.relieve()
        x = torch.randn(4, 8)
        loss = (model(x) - x.sum(dim=1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        monitor.step(loss)
        time.sleep(step_seconds)
    return losses


def run_child(case: str, options: dict[str, Any], plan: dict[str, Any], result: Path, log: Path) -> None:
    """Trains, writes the losses, and ends as a program does, but without taking torch apart, which takes a second."""
    output = result.open("w")
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    logging.basicConfig(level=logging.WARNING)
    code = 1
    try:
        output.write(json.dumps(train(case, options, plan.get("relieved_at", -1), plan.get("step_seconds", 0.0))))
        output.close()
        code = 0
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        os._exit(code)


def main() -> None:
    plan = json.loads(sys.argv[1])
    resources.RETRY_SECONDS = plan.get("retry_seconds", resources.RETRY_SECONDS)
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o777)  # one case is another user's
    os.environ["CABOOSE_DISABLED"] = "1"
    print(json.dumps({"case": "bare", "code": 0, "losses": train("", {}, -1, 0.0), "log": ""}), flush=True)
    del os.environ["CABOOSE_DISABLED"]
    for number, (case, options) in enumerate(plan["cases"]):
        result, log = directory / f"{number}.json", directory / f"{number}.log"
        child = os.fork()
        if child == 0:
            run_child(case, options, plan, result, log)
        _, status = os.waitpid(child, 0)
        written = result.read_text()
        found = {
            "case": case,
            "code": os.waitstatus_to_exitcode(status),
            "losses": json.loads(written) if written else None,
            "log": log.read_text(),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
