"""What the losses should have been: two ranks without Caboose that train anew, and go back by themselves where told to.

Design
------
One torchrun job serves a whole campaign, because starting ranks takes longer than a run of some hundred steps. Its
ranks connect to the runner, wait for a request, train, and answer with their losses. They end when the runner is gone.
"""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from support.processes import clean_environment, end, torchrun

NUM_RANKS = 2
ANSWER_SECONDS = 60.0


class Reference:
    """Asks the ranks; answers are kept, since many runs differ in nothing."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections
        self._known: dict[str, list[list[str]]] = {}

    def losses(self, request: dict[str, Any]) -> list[list[str]]:
        """Each rank's losses by step, as hexadecimal floats."""
        text = json.dumps(request, sort_keys=True)
        if text not in self._known:
            self._known[text] = self._ask(text.encode())
        return self._known[text]

    def _ask(self, request: bytes) -> list[list[str]]:
        for connection in self._connections:
            connection.send_bytes(request)
        if not all(connection.poll(ANSWER_SECONDS) for connection in self._connections):
            raise TimeoutError(f"the reference ranks did not answer within {ANSWER_SECONDS:g} s")
        return [json.loads(connection.recv_bytes()) for connection in self._connections]


@contextmanager
def reference(directory: Path) -> Iterator[Reference]:
    """The ranks, running; ended with the block."""
    directory.mkdir(parents=True, exist_ok=True)
    key = secrets.token_hex(16)
    with Listener(("127.0.0.1", 0), authkey=key.encode()) as listener, (directory / "reference.log").open("wb") as log:
        command = torchrun(Path(__file__), str(listener.address[1]), ranks=NUM_RANKS)
        env = clean_environment(CHAOS_REFERENCE_KEY=key)
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        connections: list[Connection] = []
        try:
            by_rank = {}
            for _ in range(NUM_RANKS):
                connection = listener.accept()
                connections.append(connection)
                by_rank[int(connection.recv_bytes())] = connection
            yield Reference([by_rank[rank] for rank in range(NUM_RANKS)])
        finally:
            for connection in connections:
                connection.close()
            end(process)


def train(request: dict[str, Any]) -> list[str]:
    """One run on this rank."""
    import torch.distributed as dist

    from chaos.training import Batches, Training

    training = Training(request["sharding"], request["seed"])
    batches = Batches(request["seed"], dist.get_rank(), request["bad_batch"])
    actions = {action["boundary"]: action for action in request["actions"]}
    targets = {action["target"] for action in request["actions"]}
    saved, losses = {}, []
    for step in range(1, request["steps"] + 1):
        losses.append(training.update(next(batches)).item().hex())
        if step in actions:
            action = actions[step]
            training.go_back(saved[action["target"]], action["lr_scale"])
            for _ in range(action["skip"]):
                next(batches)
        elif step in targets:
            saved[step] = training.save()
        training.schedule.step()
    return losses


def main() -> None:
    """A rank: answers requests until the runner closes the connection."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    key = os.environ["CHAOS_REFERENCE_KEY"].encode()
    with Client(("127.0.0.1", int(sys.argv[1])), authkey=key) as connection:
        connection.send_bytes(str(dist.get_rank()).encode())
        try:
            while True:
                request = json.loads(connection.recv_bytes())
                connection.send_bytes(json.dumps(train(request)).encode())
        except EOFError:
            pass
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
