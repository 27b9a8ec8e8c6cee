"""Cost of the rollback gate: per step when nothing is armed, and from a command to the last rank's action.

    python bench/gate.py                    both tables (about half a minute)
    python bench/gate.py --check            exit code 1 if a goal is missed
    python bench/gate.py --ranks 2          another number of ranks

Design
------
Idle: `pass_boundary` in a loop on one thread, helper running, the loop's own cost subtracted; CPU time of the best of
many rounds, since the rest is noise of the machine. Armed: real gloo ranks with a TCPStore on rank 0 and actions that
do nothing. All ranks get a command for a boundary a few steps ahead and end those steps at once, so the protocol is
measured, not the wait for the boundary: *ready* is from the offer to this rank's acknowledgement, *gate* how long
the training thread was paused at the boundary, and *all* from the offer to the last rank's end.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL_IDLE_SECONDS = 1e-6
GOAL_GATE_SECONDS = 0.1
NUM_COMMANDS = 60
LEAD = 3


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="exit code 1 if a goal is missed")
    parser.add_argument("--rank-of", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_of is not None:
        be_a_rank(arguments.rank_of)
        return 0

    idle = idle_seconds()
    print(f"idle      {1e9 * idle:8.0f} ns per step  (goal: below {1e9 * GOAL_IDLE_SECONDS:.0f} ns)")
    measured = armed_seconds(arguments.ranks)
    for name, values in measured.items():
        quantiles = statistics.quantiles(values, n=20)
        print(
            f"{name:9} {1e3 * statistics.median(values):8.2f} ms median, {1e3 * quantiles[18]:.2f} ms at 95 %, "
            f"{1e3 * max(values):.2f} ms at most, over {len(values)} commands on {arguments.ranks} ranks"
        )
    is_met = idle < GOAL_IDLE_SECONDS and statistics.median(measured["gate"]) < GOAL_GATE_SECONDS
    return 1 if arguments.check and not is_met else 0


class IdleHands:
    """Actions that do nothing."""

    def refuses(self, command: object, step: int) -> str:
        return ""

    def let_go(self, command: object) -> None:
        """Nothing is held."""

    def act(self, command: object, step: int) -> str:
        return ""


def idle_seconds(num_calls: int = 20_000, num_rounds: int = 60) -> float:
    """Cost of one boundary when nothing is armed."""
    from caboose.rollback.coordinator import Coordinator
    from caboose.rollback.group import open_group

    group = open_group(0, 1)
    gate = Coordinator(
        group.open_store, IdleHands(), rank=0, world=1, group=group.nonce, key=group.key, on_answer=lambda ack: None
    )
    gate.start()
    pass_boundary = gate.pass_boundary
    rounds = []
    for _ in range(num_rounds):
        begun = time.thread_time()
        for _step in range(num_calls):
            pass
        between = time.thread_time()
        for step in range(num_calls):
            pass_boundary(step)
        rounds.append((time.thread_time() - between - (between - begun)) / num_calls)
    gate.close()
    return min(rounds)


def armed_seconds(num_ranks: int) -> dict[str, list[float]]:
    """Duration of every command on the slowest rank."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--rank-of", directory]
        ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(num_ranks)]  # noqa: S603
        try:
            for process in ranks:
                if process.wait(120) != 0:
                    raise RuntimeError(f"a rank ended with {process.returncode}")
        finally:
            for process in ranks:
                process.kill()
        written = [json.loads((Path(directory) / f"{rank}.json").read_text()) for rank in range(num_ranks)]
    return {
        name: [max(values) for values in zip(*(rank[name] for rank in written), strict=True)] for name in written[0]
    }


def be_a_rank(directory: Path) -> None:
    """One rank: gets every command, passes the boundaries, and records the durations."""
    import torch.distributed as dist

    from caboose.rollback.budget import Limits
    from caboose.rollback.coordinator import Coordinator
    from caboose.rollback.group import open_group
    from caboose_wire import Ack, Command

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=world)
    group = open_group(rank, world)
    answers: dict[str, tuple[float, Ack]] = {}
    gate = Coordinator(
        group.open_store,
        IdleHands(),
        rank=rank,
        world=world,
        group=group.nonce,
        key=group.key,
        limits=Limits(max_attempts=10**6),
        on_answer=lambda ack: answers.update({ack.outcome: (time.perf_counter(), ack)}),
    )
    gate.start()
    while not gate.is_connected:
        time.sleep(0.01)
    step = 0
    times: dict[str, list[float]] = {"ready": [], "gate": [], "all": []}
    for number in range(1, NUM_COMMANDS + 1):
        answers.clear()
        dist.barrier()
        begun = time.perf_counter()
        boundary = step + LEAD
        gate.offer(
            Command(
                number=number,
                kind="snapshot",
                group=group.nonce,
                world=world,
                boundary=boundary,
                expires=time.time() + 60,
            )
        )
        while "accepted" not in answers:
            time.sleep(0.0001)
        while step < boundary:
            step += 1
            gate.pass_boundary(step)
        if "done" not in answers:
            raise RuntimeError(f"command {number} was not carried out: {answers}")
        times["ready"].append(answers["accepted"][0] - begun)
        times["gate"].append(answers["done"][1].seconds)
        times["all"].append(time.perf_counter() - begun)
    gate.close()
    (directory / f"{rank}.json").write_text(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
