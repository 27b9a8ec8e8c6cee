"""The benefit of a rollback: a run with a lasting spike under `auto`, compared with an unguarded and a clean run.

    python bench/rollback.py                            DDP and FSDP2 on 2 and 3 ranks, five seeds (about 40 minutes)
    python bench/rollback.py --worlds ddp:2 --seeds 1   one run (about 1.5 minutes)
    python bench/rollback.py --check                    exit code 1 if a goal is missed

Design
------
Each run is the demo's job under torchrun with its own daemon. The *guarded* and the *unguarded* run get the same
corrupted batches and the same too-high learning rate; the *clean* one gets neither. All three see the same other
batches, and are compared by their loss on text that none of them trained on. What counts as noise is three standard
deviations of clean runs of different seeds, and at least 2 %: a rolled back run has trained fewer steps.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caboose_daemon.ops.processes import end, start, start_daemon, tail
from caboose_daemon.out.api.client import Client, job_path

BAD_STEPS = 8
SNAPSHOT_EVERY = 10
LAST = 30
"""Steps at the end over which the training loss is averaged."""
JOB = "bench"


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    held_out: float
    last_loss: float
    worst_loss: float
    num_rollbacks: int
    is_consistent: bool
    """Whether all ranks ended with the same parameters."""
    boundary: int | None = None
    target: int | None = None
    detected: int | None = None
    seconds: float = 0.0
    decision_seconds: float | None = None


def main() -> None:
    """Runs all of it and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default="ddp:2,ddp:3,fsdp2:2,fsdp2:3", help="which, as sharding:ranks")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="steps of each run")
    parser.add_argument("--spike-at", type=int, default=140, help="the first corrupted step")
    parser.add_argument("--step-seconds", type=float, default=0.05, help="minimum step time")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--output", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    lines: list[str] = []
    is_good = True
    for world in options.worlds.split(","):
        sharding, ranks = world.split(":")
        runs = {
            kind: [_run(kind, sharding, int(ranks), seed, options) for seed in range(options.seeds)]
            for kind in ("clean", "unguarded", "guarded")
        }
        table, is_met = _table(sharding, int(ranks), runs, options)
        lines += table
        is_good &= is_met
        print("\n".join(table), flush=True)
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if options.check and not is_good:
        sys.exit(1)


def _run(kind: str, sharding: str, ranks: int, seed: int, options: argparse.Namespace) -> Outcome:
    print(f"{sharding} on {ranks} ranks, seed {seed}: {kind} ...", file=sys.stderr, flush=True)
    directory = Path(tempfile.mkdtemp(prefix="caboose-bench-"))
    mode = "auto" if kind == "guarded" else "advise"
    daemon, endpoint, url = start_daemon(directory, "--rollback", mode)
    try:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "-m", "caboose_drills.demo"]
        command += ["--steps", str(options.steps), "--spike-at", str(options.spike_at)]
        command += ["--seed", str(seed), "--sharding", sharding]
        command += ["--bad-steps", "0" if kind == "clean" else str(BAD_STEPS), "--rollback", mode]
        command += ["--step-seconds", str(options.step_seconds), "--snapshot-every", str(SNAPSHOT_EVERY)]
        command += ["--result", str(directory / "result")]
        env = {"CABOOSE_ENDPOINT": endpoint, "CABOOSE_JOB": JOB, "OMP_NUM_THREADS": "1", "TMPDIR": str(directory)}
        job = start(command, directory, directory / "job.log", env)
        try:
            code = job.wait(timeout=600)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            end(job)
        if code != 0:
            sys.exit(f"{kind} run failed:\n{tail(directory / 'job.log')}")
        results = [json.loads((directory / f"result.{rank}").read_text()) for rank in range(ranks)]
        time.sleep(1.0)  # for the last reports to be aligned
        rows = Client(url, timeout=10.0).get(job_path(JOB, "/decisions"))["decisions"]
        decisions = [row for row in rows if row["state"] == "committed"]
    finally:
        end(daemon)
    return _outcome(results, decisions)


def _outcome(results: list[dict[str, Any]], decisions: list[dict[str, Any]]) -> Outcome:
    losses = [statistics.fmean(step) for step in zip(*(r["losses"] for r in results), strict=True)]
    first = decisions[-1] if decisions else {}
    return Outcome(
        held_out=results[0]["held_out"],
        last_loss=statistics.fmean(losses[-LAST:]),
        worst_loss=max(losses),
        num_rollbacks=results[0]["num_rollbacks"],
        is_consistent=len({(r["parameters"], r["num_rollbacks"]) for r in results}) == 1,
        boundary=first.get("boundary"),
        target=first.get("target"),
        detected=first.get("step"),
        seconds=results[0]["seconds"],
        decision_seconds=first.get("seconds"),
    )


def _table(
    sharding: str, ranks: int, runs: dict[str, list[Outcome]], options: argparse.Namespace
) -> tuple[list[str], bool]:
    lines = [
        f"\n### {sharding.upper()} on {ranks} ranks\n",
        "| seed | clean | unguarded | guarded | decided at | went back | steps lost | held up | same on all ranks |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    clean, unguarded, guarded = runs["clean"], runs["unguarded"], runs["guarded"]
    spread = statistics.stdev(o.held_out for o in clean) if len(clean) > 1 else 0.0
    noise = max(3 * spread, 0.02 * statistics.fmean(o.held_out for o in clean))
    is_met = True
    for seed, (c, u, g) in enumerate(zip(clean, unguarded, guarded, strict=True)):
        went = f"{g.boundary} → {g.target}" if g.boundary else "never"
        lost = g.boundary - g.target if g.boundary is not None and g.target is not None else 0
        held = f"{g.decision_seconds:.2f} s" if g.decision_seconds is not None else ""
        lines.append(
            f"| {seed} | {c.held_out:.4f} | {u.held_out:.4f} | {g.held_out:.4f} | {g.detected} | {went} | {lost} | "
            f"{held} | {'yes' if g.is_consistent else 'NO'} |"
        )
        is_met &= g.num_rollbacks >= 1 and g.is_consistent
        is_met &= g.held_out - c.held_out <= noise < u.held_out - c.held_out
    last_bad = options.spike_at + BAD_STEPS - 1
    lines.append(
        f"\nHeld-out loss at the end; bad steps {options.spike_at} to {last_bad} of {options.steps}. Within noise "
        f"of the clean run means within {noise:.4f} (three standard deviations of clean runs, {3 * spread:.4f}, and at "
        f"least 2 %). Snapshots every {SNAPSHOT_EVERY} steps. {'Every goal is met.' if is_met else 'A GOAL IS MISSED.'}"
    )
    return lines, is_met


if __name__ == "__main__":
    main()
