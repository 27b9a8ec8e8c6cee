"""Ends in many ways: `leaving.py ENDPOINT` forks a process for each, and prints what the parent of each sees.

leaving.py ENDPOINT bare      the same without Caboose
"""

import code
import gc
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # here once, and not in every process

import caboose
import caboose.attachment.build


class EarlyStop(Exception):
    """The script's own."""


def handle(error: BaseException) -> None:
    """As Hydra does."""
    try:
        raise error
    except Exception:  # noqa: BLE001 - whatever it is
        sys.exit(1)


def in_finally(error: BaseException, monitor: Any) -> None:
    try:
        raise error
    finally:
        monitor.close()


def stop_early(monitor: Any) -> None:
    try:
        raise EarlyStop
    except EarlyStop:
        monitor.close()


def with_block(monitor: Any) -> None:
    with monitor:
        sys.exit(0)


def interrupted(status: int) -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        sys.exit(status)


def asked_to_save(error: BaseException | None = None) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.raise_signal(signal.SIGUSR1)
    if error is not None:
        raise error


def at_prompt() -> None:
    sys.ps1 = ">>> "
    code.InteractiveInterpreter().runsource("1/0")


def fork_a_rank(endpoint: str, place: str, action: Callable[[], None]) -> None:
    def rank() -> None:
        train(endpoint, job_of(place))
        action()

    child = multiprocessing.get_context("fork").Process(target=rank)
    child.start()
    child.join()
    os._exit(abs(child.exitcode or 0))


def hung_with_a_watchdog() -> None:
    threading.Timer(0.1, os._exit, (5,)).start()
    time.sleep(60)


def raising(error: BaseException) -> None:
    raise error


PLACES: dict[str, Callable[[Any], None]] = {
    "end": lambda monitor: None,
    "sys.exit(0)": lambda monitor: sys.exit(0),
    "sys.exit(3)": lambda monitor: sys.exit(3),
    "sys.exit of a text": lambda monitor: sys.exit("no data left"),
    "sys.exit of another thread": lambda monitor: threading.Thread(target=sys.exit, args=(3,)).start(),
    "exit of a handled error": lambda monitor: handle(ValueError("bad shard")),
    "os._exit(0)": lambda monitor: os._exit(0),
    "os._exit(4)": lambda monitor: os._exit(4),
    "os._exit of another thread": lambda monitor: hung_with_a_watchdog(),
    "exception": lambda monitor: raising(ValueError("bad shard")),
    "close in a finally": lambda monitor: in_finally(ValueError("bad shard"), monitor),
    "close in an except": stop_early,
    "an error at a prompt": lambda monitor: at_prompt(),
    "exit from a with block": with_block,
    "interrupted, exit(130)": lambda monitor: interrupted(130),
    "USR1": lambda monitor: signal.raise_signal(signal.SIGUSR1),
    "handled USR1": lambda monitor: asked_to_save(),
    "error after USR1": lambda monitor: asked_to_save(ValueError("bad shard")),
}
FORKED: dict[str, Callable[[], None]] = {
    "an error of a forked rank": lambda: raising(ValueError("bad shard")),
    "SIGTERM of a forked rank": lambda: signal.raise_signal(signal.SIGTERM),
}


class Nothing:
    """In place of a monitor."""

    def __enter__(self) -> "Nothing":
        return self

    def __exit__(self, *_: object) -> None: ...

    def step(self, *_: object) -> None: ...

    def close(self) -> None: ...


def train(endpoint: str, job: str) -> Any:
    """Three steps."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    is_bare = sys.argv[2:] == ["bare"]
    monitor: Any = Nothing() if is_bare else caboose.attach(model, optimizer, job=job, endpoint=endpoint)
    for _ in range(3):
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss)
    return monitor


def job_of(place: str) -> str:
    """The name under which the process that ends so reports."""
    return re.sub(r"[^A-Za-z0-9]+", "-", place)


def leave(endpoint: str, place: str) -> None:
    if place in FORKED:
        fork_a_rank(endpoint, place, FORKED[place])
    else:
        PLACES[place](train(endpoint, job_of(place)))


def main() -> None:
    statuses = {}
    gc.freeze()  # the processes leave what is here alone
    for place in [*PLACES, *FORKED]:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            leave(sys.argv[1], place)
            return
        statuses[place] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps(statuses), flush=True)


if __name__ == "__main__":
    main()
