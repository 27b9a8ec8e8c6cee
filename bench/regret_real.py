"""Regret of rollback on real small trainings: never, at once, auto and an oracle, by the held-out loss at the end.

    python bench/regret_real.py --num 32          the first 32 trainings (about 40 minutes on 2 idle cores)
    python bench/regret_real.py --minutes 5       as many as fit; run again to go on
    python bench/regret_real.py --report          the table of what was run

Design
------
Each training is a model, an optimizer, a sharding and a fault, on 2 ranks under torchrun. *never* is left alone, *auto*
has a daemon that may act. The oracle goes back to the newest snapshot before the fault after 4 to 80 steps, branched
within one run, and takes the best of these and of never; *at once* is its first branch. What a run loses is its
held-out loss above the clean run's, as a share of what never loses: regret is what auto loses more than the oracle.

Results are kept in a file, one line a training, so an interrupted measurement goes on; delete it to start anew.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from caboose_daemon.ops.processes import end, start, start_daemon, tail
from caboose_daemon.out.api.client import Client, job_path

PATH = Path("build/bench-regret/real.jsonl")
JOB = "bench"
STEPS = 300
WORSE = 0.02
"""Held-out loss of auto above that of never, as a share of it, that counts as worse."""
FAULTS = (
    {"fault": "both", "bad_steps": 8, "strength": 30.0},
    {"fault": "data", "bad_steps": 12, "strength": 1.0},
    {"fault": "rate", "bad_steps": 3, "strength": 60.0},
    {"fault": "both", "bad_steps": 2, "strength": 10.0},
)


@dataclass(frozen=True)
class Training:
    """One training."""

    model: str
    optimizer: str
    sharding: str
    fault: int
    seed: int

    @property
    def id(self) -> str:
        """Its name in the results."""
        return f"{self.model}/{self.optimizer}/{self.sharding}/{self.fault}/{self.seed}"

    def arguments(self, mode: str) -> list[str]:
        """Of the job."""
        fault = FAULTS[self.fault]
        found = ["--model", self.model, "--optimizer", self.optimizer, "--sharding", self.sharding, "--mode", mode]
        found += ["--fault", str(fault["fault"]), "--bad-steps", str(fault["bad_steps"])]
        found += ["--strength", str(fault["strength"]), "--seed", str(self.seed), "--steps", str(STEPS)]
        return found


@dataclass(frozen=True)
class Result:
    """How a training ended in each mode: held-out losses."""

    id: str
    clean: float
    never: float
    once: float
    oracle: float
    auto: float
    rollbacks: list[list[int]]
    seconds: float


def trainings() -> Iterator[Training]:
    """All of them, mixed so that the first few have every model, optimizer, sharding and fault."""
    combinations = list(
        itertools.product(("transformer", "cnn", "mlp", "lstm"), ("adamw", "sgd", "muon"), ("ddp", "fsdp2"))
    )
    for number in range(4 * len(combinations)):
        model, optimizer, sharding = combinations[7 * number % len(combinations)]
        yield Training(model, optimizer, sharding, (number + number // len(combinations)) % len(FAULTS), number // 24)


def main() -> None:
    """Runs what is missing, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=32, help="trainings")
    parser.add_argument("--minutes", type=float, default=90.0, help="no training is begun after this time")
    parser.add_argument("--report", action="store_true", help="only the table of what was run")
    options = parser.parse_args()
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.touch()
    known = {row["id"]: Result(**row) for row in map(json.loads, PATH.read_text().splitlines())}
    began = time.monotonic()
    for training in itertools.islice(trainings(), options.num):
        if training.id in known or options.report or time.monotonic() - began > 60.0 * options.minutes:
            continue
        print(f"{training.id} ...", file=sys.stderr, flush=True)
        try:
            result = play(training)
        except RuntimeError as error:
            print(f"{training.id} failed: {error}", file=sys.stderr, flush=True)
            continue
        known[training.id] = result
        with PATH.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
    report([known[t.id] for t in itertools.islice(trainings(), options.num) if t.id in known])


def play(training: Training) -> Result:
    """One training in every mode."""
    began = time.monotonic()
    clean, _ = _run(training, "never", extra=["--bad-steps", "0"])
    never, _ = _run(training, "never")
    oracle, _ = _run(training, "oracle", with_daemon=False)
    auto, decisions = _run(training, "auto")
    branches = {int(after): loss for after, loss in oracle["branches"].items()}
    return Result(
        id=training.id,
        clean=clean["held_out"],
        never=never["held_out"],
        once=branches[min(branches)],
        oracle=min(never["held_out"], *branches.values()),
        auto=auto["held_out"],
        rollbacks=[[d["step"], d["boundary"], d["target"]] for d in decisions if d["kind"] == "rollback"],
        seconds=time.monotonic() - began,
    )


def _run(
    training: Training, mode: str, *, extra: list[str] | None = None, with_daemon: bool = True
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One job's result, and the decisions that were carried out."""
    with tempfile.TemporaryDirectory(prefix="caboose-bench-") as name:
        directory = Path(name)
        daemon, endpoint, url = (
            start_daemon(directory, "--rollback", "auto" if mode == "auto" else "advise")
            if with_daemon
            else (None, "", "")
        )
        try:
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
            command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
            command += [str(Path(__file__).with_name("regret_real_job.py")), *training.arguments(mode), *(extra or [])]
            command += ["--result", str(directory / "result.json")]
            env = {"CABOOSE_ENDPOINT": endpoint, "CABOOSE_JOB": JOB, "OMP_NUM_THREADS": "1", "TMPDIR": name}
            env |= {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
            job = start(command, directory, directory / "job.log", env)
            try:
                code = job.wait(timeout=240)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                end(job)
            if code != 0:
                raise RuntimeError(f"{mode} of {training.id}:\n{tail(directory / 'job.log')}")
            decisions = []
            if mode == "auto":
                time.sleep(1.0)  # for the last reports to be aligned
                rows = Client(url, timeout=10.0).get(job_path(JOB, "/decisions"))["decisions"]
                decisions = [row for row in rows if row["state"] == "committed"]
            return json.loads((directory / "result.json").read_text()), decisions
        finally:
            if daemon is not None:
                end(daemon)


def report(results: list[Result]) -> None:
    """One row a training, and what they come to."""
    print("| training | clean | never | at once | oracle | auto | rolled back | regret, share of what never loses |")
    print("|---|---|---|---|---|---|---|---|")
    for r in results:
        went = "; ".join(f"{boundary} → {target}" for _, boundary, target in r.rollbacks) or "no"
        share = f"{100 * _share(r):.0f} %" if _is_hurt(r) else "(unhurt)"
        cells = [r.id, *(f"{loss:.4f}" for loss in (r.clean, r.never, r.once, r.oracle, r.auto)), went, share]
        print(f"| {' | '.join(cells)} |")
    hurt = [r for r in results if _is_hurt(r)]
    if not results:
        return
    shares = sorted(_share(r) for r in hurt)
    middle = f"median regret {100 * statistics.median(shares):.0f} % of what never loses; " if shares else ""
    num_worse = sum(r.auto > r.never * (1.0 + WORSE) for r in results)
    num_back, seconds = sum(bool(r.rollbacks) for r in results), statistics.fmean(r.seconds for r in results)
    print(
        f"\n{len(results)} trainings, of which the fault hurts {len(hurt)} (held-out loss at the end over "
        f"{100 * WORSE:.0f} % above the clean run's): {middle}auto ends over {100 * WORSE:.0f} % above never in "
        f"{num_worse}. {num_back} were rolled back, {seconds:.0f} s each."
    )


def _is_hurt(result: Result) -> bool:
    return not result.never <= result.clean * (1.0 + WORSE)


def _share(result: Result) -> float:
    """The regret as a share of what never loses."""
    damage = result.never - result.clean
    if not damage < float("inf"):
        return 0.0 if result.auto < 1e9 else 1.0
    return max(0.0, result.auto - result.oracle) / max(damage, 1e-12)


if __name__ == "__main__":
    main()
