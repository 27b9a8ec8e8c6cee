"""Regret of rollback on real small trainings: never, at once, auto and an oracle, by the held-out loss at the end.

    python bench/regret_real.py                   36 trainings: 12 kinds, three seeds each (see docs/rollback.md)
    python bench/regret_real.py --quick           one seed of each kind
    python bench/regret_real.py --minutes 5       as many as fit; run again to go on
    python bench/regret_real.py --report          the table of what was run

Design
------
Each training is a model, an optimizer, a sharding and a fault, on 2 ranks under torchrun. *never* is left alone, *auto*
has a daemon that may act. The oracle goes back to the newest snapshot before the fault after 4 to 80 steps, branched
within one run, and takes the best of these and of never; *at once* is its first branch. What a run loses is its
held-out loss above the clean run's, as a share of what never loses: regret is what auto loses more than the oracle.

*auto* is worse than *never* if the whole 95 % interval of the difference over the seeds is above 0: one training ends a
little better or worse for every change of its batches.

Results are kept in a file, one line a training, so an interrupted measurement goes on. The part under `auto` is run
again when the code that decides (the daemon's `rollback` packages) has changed; the rest is not.
"""

import argparse
import hashlib
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regret_real_job import Case

import caboose_daemon
from caboose_daemon.ops.processes import end, start, start_daemon, tail

PATH = Path("build/bench-regret-real.jsonl")
STEPS = 300
SEEDS = 3
T_OF_TWO = 4.303
"""Student's t of 95 % for two degrees of freedom: three seeds."""
HURT = 0.02
"""Held-out loss of never above the clean run's, as a share of it, from which the fault has hurt."""
FAULTS = (("both", 8, 30.0), ("data", 12, 1.0), ("rate", 3, 60.0), ("both", 2, 10.0))
"""What goes wrong, for how many steps, and the factor on the rate."""
GIVE_UP_SECONDS = 300.0
"""Without a result for so long, a training hangs."""


@dataclass(frozen=True)
class Kind:
    """A kind of training; one for each seed."""

    model: str
    optimizer: str
    sharding: str
    fault: int

    @property
    def name(self) -> str:
        """Its name in the results."""
        return f"{self.model}-{self.optimizer}-{self.sharding}-{self.fault}"

    def case(self, seed: int, *, has_reference: bool) -> Case:
        """The training of a seed."""
        fault, bad_steps, strength = FAULTS[self.fault]
        return Case(
            id=f"{self.name}-{seed}",
            model=self.model,
            optimizer=self.optimizer,
            sharding=self.sharding,
            fault=fault,
            bad_steps=bad_steps,
            strength=strength,
            seed=seed,
            steps=STEPS,
            has_reference=has_reference,
        )


@dataclass(frozen=True)
class Result:
    """Held-out losses of a training at its end."""

    clean: float
    never: float
    once: float
    oracle: float
    auto: float
    rollbacks: Sequence[Sequence[int]]

    @property
    def is_hurt(self) -> bool:
        """Whether the fault did damage that lasts to the end."""
        return not self.never <= self.clean * (1.0 + HURT)

    @property
    def regret(self) -> float:
        """What auto lost more than the oracle, as a share of what never loses."""
        damage = self.never - self.clean
        if not math.isfinite(damage):
            return 0.0 if math.isfinite(self.auto) else 1.0
        return max(0.0, self.auto - self.oracle) / max(damage, 1e-12)


def kinds() -> Iterator[Kind]:
    """All of them: every model with every optimizer, shardings and faults in turn."""
    for number, (model, optimizer) in enumerate(
        itertools.product(("transformer", "cnn", "mlp", "lstm"), ("adamw", "sgd", "muon"))
    ):
        yield Kind(model, optimizer, ("ddp", "fsdp2")[number % 2], (number + number // 4) % len(FAULTS))


def main() -> None:
    """Runs what is missing, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed of each kind instead of three")
    parser.add_argument("--only", default="", help="only kinds with this in their name, such as lstm")
    parser.add_argument("--minutes", type=float, default=90.0, help="no longer than this")
    parser.add_argument("--report", action="store_true", help="only the tables of what was run")
    options = parser.parse_args()
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.touch()
    seeds = range(1 if options.quick else SEEDS)
    wanted = [(kind, seed) for seed in seeds for kind in kinds() if options.only in kind.name]
    until = time.monotonic() + 60.0 * options.minutes
    failed: set[str] = set()
    while not options.report and time.monotonic() < until:
        known, code = _read(), _hash_of_code()
        cases = [kind.case(seed, has_reference=f"{kind.name}-{seed}" in known) for kind, seed in wanted]
        missing = [case for case in cases if case.id not in failed and known.get(case.id, {}).get("code") != code]
        if not missing:
            break
        failed |= _launch(missing, code, until)
    known = _read()
    _report([(kind, seed, _result(known[name])) for kind, seed in wanted if (name := f"{kind.name}-{seed}") in known])


def _read() -> dict[str, dict[str, Any]]:
    """What is known of each training; later lines complete earlier ones."""
    found: dict[str, dict[str, Any]] = {}
    for row in map(json.loads, PATH.read_text().splitlines()):
        found[row["id"]] = found.get(row["id"], {}) | row
    return found


def _launch(cases: list[Case], code: str, until: float) -> set[str]:
    """Runs trainings one after the other, until one fails; returns the one that failed, if any."""
    done = 0
    with tempfile.TemporaryDirectory(prefix="caboose-bench-") as name:
        directory = Path(name)
        results = directory / "results.jsonl"
        results.touch()
        (directory / "cases.json").write_text(json.dumps([asdict(case) for case in cases]))
        daemon, endpoint, _ = start_daemon(directory, "--rollback", "auto")
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        command += [str(Path(__file__).with_name("regret_real_job.py"))]
        command += ["--cases", str(directory / "cases.json"), "--results", str(results)]
        env = {"CABOOSE_ENDPOINT": endpoint, "OMP_NUM_THREADS": "1", "TMPDIR": name}
        job = start(command, directory, directory / "job.log", env | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
        try:
            last = time.monotonic()
            while time.monotonic() < min(until, last + GIVE_UP_SECONDS):
                is_over = job.poll() is not None
                rows = results.read_text().splitlines()
                for row in rows[done:]:
                    with PATH.open("a") as file:
                        file.write(json.dumps(json.loads(row) | {"code": code}) + "\n")
                    done, last = done + 1, time.monotonic()
                    print(f"{done} of {len(cases)}: {cases[done - 1].id}", file=sys.stderr, flush=True)
                if is_over:
                    break
                time.sleep(0.5)
            if done < len(cases) and time.monotonic() < until:
                print(f"{cases[done].id} failed:\n{tail(directory / 'job.log')}", file=sys.stderr, flush=True)
        finally:
            end(job)
            end(daemon)
    return {cases[done].id} if done < len(cases) else set()


def _result(row: dict[str, Any]) -> Result:
    branches = {int(name.removeprefix("after_")): loss for name, loss in row.items() if name.startswith("after_")}
    return Result(
        clean=row["clean"],
        never=row["never"],
        once=branches[min(branches)],
        oracle=min(row["never"], *branches.values()),
        auto=row["auto"],
        rollbacks=row["rollbacks"],
    )


def _report(results: list[tuple[Kind, int, Result]]) -> None:
    """A row for each kind, and what they come to."""
    print("| training | clean | never | at once | oracle | auto | rolled back | auto - never | regret |")
    print("|---|---|---|---|---|---|---|---|---|")
    num_worse = 0
    for kind in dict.fromkeys(kind for kind, _, _ in results):
        of_kind = [result for other, _, result in results if other == kind]
        row, is_worse = _row(kind, of_kind)
        num_worse += is_worse
        print(row)
    hurt, unhurt = [r for _, _, r in results if r.is_hurt], [r for _, _, r in results if not r.is_hurt]
    shares = sorted(r.regret for r in hurt)
    middle = f"median regret {100 * statistics.median(shares):.0f} % of what never loses, " if shares else ""
    most = f"95 % within {100 * shares[math.ceil(0.95 * len(shares)) - 1]:.0f} %; " if shares else ""
    above = max((r.auto / r.oracle - 1.0 for r in unhurt), default=0.0)
    print(
        f"\n{len(results)} trainings, of which the fault hurts {len(hurt)} (held-out loss at the end over "
        f"{100 * HURT:.0f} % above the clean run's): {middle}{most}of these {sum(bool(r.rollbacks) for r in hurt)} "
        f"were rolled back, of the others {sum(bool(r.rollbacks) for r in unhurt)}, where auto ends at most "
        f"{100 * above:.1f} % above the oracle. Auto is worse than never beyond the 95 % interval over the seeds in "
        f"{num_worse} kinds."
    )


def _row(kind: Kind, results: Sequence[Result]) -> tuple[str, bool]:
    """Means over the seeds, and whether auto is worse than never beyond the interval."""

    def mean(name: str) -> str:
        return f"{statistics.fmean(getattr(result, name) for result in results):.4f}"

    apart = [result.auto - result.never for result in results]
    middle, interval, is_worse = statistics.fmean(apart), "", False
    if len(apart) == SEEDS and math.isfinite(middle):
        half = T_OF_TWO * statistics.stdev(apart) / math.sqrt(SEEDS)
        interval, is_worse = f" ± {half:.4f}", middle - half > 0.0
    went = "; ".join(f"{boundary} → {target}" for result in results for boundary, target in result.rollbacks) or "no"
    shares = ", ".join(f"{100 * result.regret:.0f} %" if result.is_hurt else "unhurt" for result in results)
    losses = [mean(name) for name in ("clean", "never", "once", "oracle", "auto")]
    return f"| {' | '.join([kind.name, *losses, went, f'{middle:+.4f}{interval}', shares])} |", is_worse


def _hash_of_code() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(caboose_daemon.__file__).parent.glob("rollback*/*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
