"""A rank that waits for its end in one place: `ending.py ENDPOINT PLACE`. It prints a line when it is there."""

import asyncio
import faulthandler
import os
import re
import signal
import socket
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

import caboose


def announce() -> None:
    print(f"here at {time.time()}", flush=True)


def leave(*_: Any) -> None:
    sys.exit(7)


def main(endpoint: str, place: str) -> None:
    if place == "handled":
        signal.signal(signal.SIGTERM, leave)
    if place == "ignored":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if place == "hang-up":
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = caboose.attach(model, optimizer, job="ending", endpoint=endpoint)
    for _ in range(3):
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss)
    time.sleep(1.0)  # the connection is there
    if place == "handled later":
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.signal(signal.SIGTERM, leave) is signal.SIG_DFL
    if place == "restored":
        before = signal.signal(signal.SIGTERM, leave)
        signal.signal(signal.SIGTERM, before)
    if place == "handled by keyword":
        signal.signal(signalnum=signal.SIGTERM, handler=leave)
    if place in ("own descriptor", "descriptor given back"):
        kept = socket.socketpair()
        kept[1].setblocking(False)
        assert signal.set_wakeup_fd(kept[1].fileno()) == -1, "ours is not shown"
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if place == "descriptor given back":
        assert signal.set_wakeup_fd(-1) == kept[1].fileno()
    if place == "a handler below Python":
        faulthandler.register(signal.SIGTERM, chain=True)
        if os.fork() == 0:
            os._exit(0)
        os.wait()
    if place == "child":
        child = os.fork()
        if child == 0:
            time.sleep(600)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    if place not in ("waited for", "asyncio"):
        announce()
    if place == "python":
        while True:
            re.escape("busy")
    elif place == "asyncio":
        loop = asyncio.new_event_loop()
        loop.add_signal_handler(signal.SIGTERM, leave)
        loop.call_soon(announce)
        loop.run_forever()
    elif place == "waited for":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        announce()
        assert signal.sigwait({signal.SIGTERM}) == signal.SIGTERM
        sys.exit(9)
    elif place in ("collective", "own descriptor"):
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).wait(["never"])
    elif place == "ignored":
        time.sleep(2.0)
    else:
        time.sleep(600.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
