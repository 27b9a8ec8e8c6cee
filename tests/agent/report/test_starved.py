"""Without descriptors, threads or memory a run goes on unwatched, and is watched as soon as it has them."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from caboose.report import resources
from caboose.rollback.inspector import Inspector
from caboose_wire import StepReport
from support.collector import collector
from support.processes import clean_environment, end, wait_until
from support.training import JOBS

pytestmark = pytest.mark.slow

UNWATCHED = "caboose: this run is not watched for now"
NO_DAEMON = "tcp://127.0.0.1:9"


def starve(cases: list[tuple[str, dict[str, str]]], endpoint: str = NO_DAEMON, **plan: Any) -> list[dict[str, Any]]:
    """The bare run, then each case with its options for attach."""
    done = subprocess.run(
        [sys.executable, str(JOBS / "starved.py"), json.dumps({"cases": cases, **plan})],
        env=clean_environment(CABOOSE_ENDPOINT=endpoint),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_starved_run_has_the_losses_and_the_exit_code_of_a_bare_one_and_logs_the_reason_once(tmp_path: Path) -> None:
    unwatched = [f"descriptors:{free}" for free in range(13)] + ["threads", "memory:20000000", "memory:40000000"]
    if os.getuid() == 0:  # only root can become a user with a limit of its own
        unwatched += [f"processes:{number}" for number in (1, 2, 3)]
    refused = [{"rollback": "auto"}, {"checkpoints": str(tmp_path)}]
    cases = [(case, {}) for case in unwatched] + [("descriptors:0", options) for options in refused]
    bare, *starved = starve(cases)
    assert [found["case"] for found in starved] == [case for case, _ in cases]
    for found in starved[: len(unwatched)]:
        assert (found["code"], found["losses"]) == (0, bare["losses"]), found
        assert found["log"].count("caboose: ") == 1, found
        assert UNWATCHED in found["log"]
        assert "ulimit" in found["log"], "the way out"
    for found in starved[len(unwatched) :]:
        assert found["code"] == 1, "what cannot wait raises at attach"
        assert found["log"].rstrip().splitlines()[-1].startswith("ValueError: attach: "), found
        assert "ulimit -n" in found["log"]


@pytest.mark.long
def test_reporting_begins_when_the_resources_come_back() -> None:
    cases = ["descriptors:0", "descriptors:7", "threads"]
    with collector() as listening:
        bare, *starved = starve(
            [(case, {}) for case in cases], listening.endpoint, relieved_at=10, retry_seconds=0.05, step_seconds=0.03
        )
        listening.wait_for(StepReport, 15 * len(cases))
    by_run: dict[bytes, list[StepReport]] = {}
    for peer, message in listening.by_peer:
        if isinstance(message, StepReport):
            by_run.setdefault(peer, []).append(message)
    assert [(found["code"], found["losses"]) for found in starved] == [(0, bare["losses"])] * len(cases)
    assert len(by_run) == len(cases)
    for reports in by_run.values():
        first = reports[0].step
        assert 11 < first < 20
        assert [report.step for report in reports] == list(range(first, 41))
        assert [report.loss for report in reports] == [float.fromhex(loss) for loss in bare["losses"][first - 1 :]]


EXHAUSTING = """
import contextlib, os, resource, select, sys, time
import torch, caboose
from caboose.report import resources
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
monitor = caboose.attach(model, optimizer, job="exhausted")
held = []
while True:
    loss = model(torch.randn(2, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    monitor.step(loss)
    time.sleep(0.01)
    if select.select([sys.stdin], [], [], 0)[0]:
        word = sys.stdin.readline().strip()
        if word == "take":
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.dup(1))
        elif word == "give":
            while held:
                os.close(held.pop())
        else:
            break
        print(word, flush=True)
"""


class Exhausting:
    """A run that takes all descriptors, and gives them back, when it is asked to."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        if word != "end":
            assert self.process.stdout.readline().strip() == word


@contextmanager
def exhausting(endpoint: str) -> Iterator[Exhausting]:
    process = subprocess.Popen(
        [sys.executable, "-c", EXHAUSTING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(CABOOSE_ENDPOINT=endpoint),
    )
    try:
        yield Exhausting(process)
    finally:
        end(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.mark.long
def test_a_daemon_that_restarts_while_every_descriptor_is_taken_is_found_later() -> None:
    with collector() as first:
        endpoint = first.endpoint.replace("127.0.0.1", "localhost")  # its name is looked up at each try
        with exhausting(endpoint) as run:
            first.wait_for(StepReport, 1, timeout=60)
            first.close()
            run.tell("take")  # the connection's own, too
            with collector(first.endpoint) as second:
                assert not wait_until(lambda: second.messages or run.process.poll() is not None, 1.0)
                assert run.process.poll() is None, "libzmq retried without descriptors"
                run.tell("give")
                second.wait_for(StepReport, 1, timeout=60)
            run.tell("end")
            assert run.process.wait(20) == 0


def test_a_probe_gives_everything_back() -> None:
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    assert resources.shortage() == ""
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_a_probe_that_fails_gives_back_what_it_took() -> None:
    code = """
import os, resource, threading
from caboose.report import resources
resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
assert "file descriptors" in resources.shortage()
print(len(os.listdir("/proc/self/fd")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 5


def test_a_snapshot_is_left_unchecked_where_no_thread_can_be_started() -> None:
    code = """
import resource, threading
from caboose.rollback.inspector import Inspector
threading.stack_size(1 << 33)
resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))
inspector, done = Inspector(), threading.Event()
inspector.put(done.set)
assert not done.is_set()
threading.stack_size(0)
inspector.put(done.set)
assert done.wait(20)
inspector.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cannot be checked now" in done.stderr
    assert Inspector().close() is None
