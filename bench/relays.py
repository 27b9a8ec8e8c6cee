"""What relays save, and what they cost: messages, bytes and CPU time, at 8 ranks a node.

    python bench/relays.py                      128 ranks behind 16 relays on real sockets, then 65,536 in virtual time
    python bench/relays.py --quick              64 ranks behind 8 relays; 4,096 in virtual time

Design
------
Three parts, each beside the same without relays in the same run:

- Bytes of one node: what 8 agents send, and what their relay sends on, by kind. Counted, not timed.
- Real processes: a daemon, a relay for each node, a swarm of ranks on sockets (`ingest_swarm`). CPU time of the kernel.
- Virtual time: the daemon's own receiver, alignment and rules, fed in this process with the bundles of relays (one for
  each node, or one for each rack of nodes), and the clock moved by hand. It shows jobs that this machine has no room
  for. Sockets and journal are not in it.
"""

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import ingest
import ingest_swarm
import msgspec
import numpy as np

from caboose_daemon.cli.daemon import COLLECT_AFTER
from caboose_daemon.ingest.relays import Relays, lots
from caboose_daemon.relay.downstream import Downstream
from caboose_daemon.relay.unread_arrays import UnreadArrays
from caboose_wire import StepReport, encode
from caboose_wire.bundles import UP_START, pack
from support.processes import running_daemon, wait_until
from support.recorder import Core
from support.relays import running_relay

NODE = ingest_swarm.RANKS_PER_NODE
TYPES = 'caboose_messages_received_total{type="'


class Node:
    """A relay without its sockets."""

    def __init__(self) -> None:
        self._downstream, self._unread_arrays = Downstream(), UnreadArrays()
        self._sent: set[bytes] = set()

    def relay(self, messages: Sequence[tuple[int, list[bytes]]]) -> list[list[bytes]]:
        """The bundles for these messages, each with its rank."""
        parcels = [p for rank, frames in messages for p in self._downstream.take(str(rank).encode(), frames, "")]
        bundles = []
        for digest in {digest: None for parcel in parcels for digest in parcel.tables if digest not in self._sent}:
            table = self._downstream.tables.encoded(digest)
            assert table is not None
            bundles.append(pack(UP_START, [], tables={digest: table}))
            self._sent.add(digest)
        return [*bundles, *(pack(UP_START, self._unread_arrays.reduce(some)) for some in lots(parcels))]


def simulated(world: int, layers: int, sample_every: int) -> ingest_swarm.Swarm:
    """What makes Hellos and reports; without sockets."""
    plan = {"job": ingest.JOB, "world": world, "layers": layers, "sample_every": sample_every}
    return ingest_swarm.Swarm("", 0, 0, plan)


def size(messages: Iterator[list[bytes]] | Sequence[list[bytes]]) -> int:
    return sum(len(frame) for frames in messages for frame in frames)


def bytes_of_a_node(layers: int) -> None:
    """Prints what 8 agents send, and what their relay sends."""
    swarm = simulated(64 * NODE, layers, sample_every=2)
    print(f"\nBytes of one node of {64 * NODE} ranks, {NODE} on it, {layers} layers:\n")
    print("| | agents, bytes | relay, bytes | ratio | messages |\n|---|---:|---:|---:|---:|")

    def row(name: str, alone: list[list[bytes]], relayed: list[list[bytes]], without: int = 0) -> tuple[int, int]:
        before, after = size(alone) - without, size(relayed) - without
        print(f"| {name} | {before:,} | {after:,} | {before / after:.2f} | {len(alone)} : {len(relayed)} |")
        return before, after

    node = Node()
    hellos = [encode(swarm.hello(rank)) for rank in range(NODE)]
    row("Hello", hellos, node.relay(list(enumerate(hellos))))
    plain = [encode(differing(swarm.report(rank, 1), rank)) for rank in range(NODE)]
    scalars = [encode(_without_arrays(swarm.report(rank, 1))) for rank in range(NODE)]
    row("step, scalars", scalars, node.relay(list(enumerate(scalars))))
    row("step", plain, node.relay(list(enumerate(plain))))
    sampled = [encode(differing(swarm.report(rank, 2), rank)) for rank in range(NODE)]
    bare = [encode(_without_arrays(swarm.report(rank, 2))) for rank in range(NODE)]
    row("sampled step", sampled, node.relay(list(enumerate(sampled))))
    arrays = size(sampled) - size(bare)
    relayed = size(node.relay(list(enumerate(sampled)))) - size(node.relay(list(enumerate(bare))))
    print(f"| of it arrays | {arrays:,} | {relayed:,} | {arrays / relayed:.2f} | |")


def _without_arrays(report: StepReport) -> StepReport:
    return msgspec.structs.replace(report, arrays={}, slices={})


def differing(report: StepReport, rank: int) -> StepReport:
    """With numbers that differ from rank to rank where those of real ranks do."""
    draw = np.random.default_rng(rank)
    for name, array in report.arrays.items():
        if name not in ("layer_fingerprint", "activation_order"):
            report.arrays[name] = draw.random(array.shape, dtype=np.float32)
    return report


def real(num_ranks: int, options: argparse.Namespace) -> None:
    """Prints what a daemon costs with relays, and without."""
    plan = {
        "job": ingest.JOB,
        "world": num_ranks,
        "layers": options.layers,
        "steps": options.steps,
        "step_seconds": 1.0,
        "spread": 0.5,
        "sample_every": options.sample_every,
    }
    print(f"\nReal processes, {num_ranks} ranks, a step a second, every {options.sample_every}th sampled:\n")
    print(
        "| | us per report | ZeroMQ's threads, us | messages per step | KB per step | a relay, us per report | lost |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in ("without relays", "a relay for each node"):
        with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
            daemon = stack.enter_context(running_daemon(Path(home) / "daemon"))
            relays = [
                stack.enter_context(running_relay(Path(home) / f"node{number}", daemon.endpoint))
                for number in range(num_ranks // NODE if name != "without relays" else 0)
            ]
            plan["endpoints"] = [relay.endpoint for relay in relays]
            with ingest.swarm(daemon.endpoint, num_ranks, plan) as processes:
                if not wait_until(lambda d=daemon: ingest.number(d.text("/metrics"), "caboose_peers") == num_ranks, 60):
                    raise SystemExit("not all ranks were admitted")
                time.sleep(1.0)
                pids = [relay.process.pid for relay in relays]
                before, others = ingest.cpu_of(daemon.process.pid), [ingest.cpu_of(pid) for pid in pids]
                counted = _counts(daemon.text("/metrics"))
                lost = ingest.play(processes, time.time())
                wait_until(lambda d=daemon: d.step(ingest.JOB) >= options.steps, 30)
                used = ingest.cpu_of(daemon.process.pid) - before
                by_relays = [ingest.cpu_of(pid) - other for pid, other in zip(pids, others, strict=True)]
                now = _counts(daemon.text("/metrics"))
        reports = num_ranks * options.steps
        messages = (
            (now["Bundle"] - counted["Bundle"])
            if relays
            else sum(now[k] - counted[k] for k in ("StepReport", "Heartbeat"))
        )
        each = sum(cpu.own + cpu.io for cpu in by_relays) / reports * 1e6
        cost = f"{used.own / reports * 1e6:.1f} | {used.io / reports * 1e6:.1f}"
        print(
            f"| {name} | {cost} | {messages / options.steps:.1f} "
            f"| {(now['bytes'] - counted['bytes']) / options.steps / 1e3:.1f} | {each:.1f} | {lost} |",
            flush=True,
        )


def _counts(text: str) -> dict[str, float]:
    found = {kind: ingest.number(text, f'{TYPES}{kind}"') for kind in ("Bundle", "StepReport", "Heartbeat")}
    return {**found, "bytes": ingest.number(text, "caboose_received_bytes_total")}


def virtual(world: int, per_relay: int, steps: int, options: argparse.Namespace) -> dict[str, float]:
    """The daemon's receiver and rules under this many ranks behind relays."""
    swarm = simulated(world, options.layers, options.sample_every)
    core = Core()
    relays = Relays(core.state.relays)
    groups = [range(first, min(world, first + per_relay)) for first in range(0, world, per_relay)]
    nodes = [Node() for _ in groups]
    now = 1000.0

    def feed(made: list[list[tuple[int, list[bytes]]]]) -> tuple[float, float, int]:
        """CPU seconds of all relays and of the daemon, and the bytes between them."""
        start = time.process_time()
        bundles = [(number, frames) for number, some in enumerate(made) for frames in nodes[number].relay(some)]
        between = time.process_time()
        for number, frames in bundles:
            for one in relays.receive(b"relay%d" % number, frames, "", now):
                core.receiver.handle_whole(one.peer, one.frames, one.size, now, one.key, one.tables)
        return between - start, time.process_time() - between, size([frames for _, frames in bundles])

    _, storm, _ = feed([[(rank, encode(swarm.hello(rank))) for rank in ranks] for ranks in groups])
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)  # as in a daemon
    by_relay = by_daemon = judging = 0.0
    num_bytes = 0
    for step in range(1, steps + 1):
        now += 1.0
        made = [
            [(rank, encode(_at(swarm.report(rank, step), now + 1e-6 * rank))) for rank in ranks] for ranks in groups
        ]
        relay, daemon, sent = feed(made)
        by_relay, by_daemon, num_bytes = by_relay + relay, by_daemon + daemon, num_bytes + sent
        del made
        start = time.process_time()
        core.pass_time(now)
        judging += time.process_time() - start
    job = core.state.jobs[ingest.JOB]
    if job.num_steps != steps:
        raise SystemExit(f"{job.num_steps} of {steps} steps were judged")
    reports = world * steps
    return {
        "relay": by_relay / reports * 1e6,
        "receive": by_daemon / reports * 1e6,
        "judge": judging / reports * 1e6,
        "bytes": num_bytes / steps,
        "bundles": float(len(groups)),
        "storm": storm / world * 1e6,
    }


def _at(report: StepReport, now: float) -> StepReport:
    return msgspec.structs.replace(report, time=now)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=128, help="on real sockets")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--sample-every", type=int, default=10)
    parser.add_argument("--virtual", default="4096,16384,65536", help="sizes in virtual time")
    parser.add_argument("--virtual-steps", type=int, default=5)
    parser.add_argument("--only", choices=("bytes", "real", "virtual"), help="one of the three parts")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    if options.quick:
        options.ranks, options.steps, options.virtual = 64, 12, "4096"
    if options.only in (None, "bytes"):
        bytes_of_a_node(options.layers)
    if options.only in (None, "real"):
        real(options.ranks, options)
    if options.only in (None, "virtual"):
        all_virtual(options)
    return 0


def all_virtual(options: argparse.Namespace) -> None:
    """Prints what the daemon's receiver and rules cost for each size."""
    print(f"\nVirtual time, {options.virtual_steps} steps, none sampled; us of CPU per report:\n")
    print("| ranks | ranks per relay | relay | daemon: receive | judge | daemon, s per step | MB per step | Hello |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    options.sample_every = 100
    for world in map(int, options.virtual.split(",")):
        for per_relay in (NODE, 64 * NODE):
            row: dict[str, Any] = virtual(world, per_relay, options.virtual_steps, options)
            print(
                f"| {world:,} | {per_relay} | {row['relay']:.1f} | {row['receive']:.1f} | {row['judge']:.1f} "
                f"| {(row['receive'] + row['judge']) * world / 1e6:.2f} | {row['bytes'] / 1e6:.2f} "
                f"| {row['storm']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
