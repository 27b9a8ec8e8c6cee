"""Runs public training code twice, without Caboose and under `python -m caboose`, and prints how the two runs compare.

    python tests/field/run.py --list
    python tests/field/run.py --checkout ~/src/nanoGPT --case nanogpt
    python tests/field/run.py --all ~/src     # every case whose checkout is in ~/src; goes on where it stopped

Design
------
The checkout is copied, so that nothing is written to it; the copy is not changed. Both runs get the same command, data
and seed, and a recorder (`recorder/`), which is imported before the script. What the recorder wrote is compared between
the runs, and with the journal of a daemon of the second run. Results are kept as JSON, so that `--all` can be resumed;
`--again` runs what has a result too.
"""

import argparse
import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import compare
from cases import CASES, Case

HERE = Path(__file__).resolve().parent
HEADER = (
    "code base",
    "commit",
    "exit",
    "identical",
    "numbers",
    "not seen",
    "raised",
    "agent",
    "CPU",
    "without code edits",
)


@dataclass
class Result:
    """What one case showed."""

    case: str
    commit: str
    exit_codes: list[int]
    identical: str
    numbers: list[str]
    blind: dict[str, str]
    raised: list[str]
    agent_share: float | None
    cpu_seconds: list[float]
    edits: str
    lines: list[str] = field(default_factory=list)
    """What Caboose logged."""

    def row(self) -> str:
        blind = ", ".join(sorted(self.blind)) or "-"
        share = "-" if self.agent_share is None else f"{100 * self.agent_share:.1f} %"
        cpu = " / ".join(f"{seconds:.0f} s" for seconds in self.cpu_seconds)
        codes = " / ".join(map(str, self.exit_codes))
        cells = (self.case, self.commit, codes, self.identical, "; ".join(self.numbers), blind)
        return "| " + " | ".join((*cells, "; ".join(self.raised) or "nothing", share, cpu, self.edits)) + " |"


def main() -> int:
    arguments = _parse()
    if arguments.list:
        for case in CASES.values():
            print(f"{case.name:24} {case.repository:44} {case.note}")
        return 0
    chosen = _chosen(arguments)
    work = Path(arguments.work).resolve()
    arguments.torchvision = prepare_torchvision(arguments)
    print("| " + " | ".join(HEADER) + " |\n" + "|---" * len(HEADER) + "|", flush=True)
    failed = 0
    for case, checkout in chosen:
        kept = work / f"{case.name}.json"
        if arguments.all and kept.exists() and not arguments.again:
            print(Result(**json.loads(kept.read_text())).row(), flush=True)
            continue
        try:
            result = run_case(case, checkout, work / case.name, arguments)
        except (OSError, ImportError, subprocess.SubprocessError) as error:
            print(f"{case.name}: {error}", file=sys.stderr)
            failed += 1
            continue
        kept.write_text(json.dumps(asdict(result), indent=1))
        print(result.row(), flush=True)
    return 1 if failed else 0


def prepare_torchvision(arguments: argparse.Namespace) -> bool:
    """Whether the recorder must help torchvision's import; then here too, since some data is made with what uses it."""
    is_needed = _is_torchvision_without_its_library(arguments)
    if is_needed:
        os.environ["FIELD_TORCHVISION"] = "1"
        importlib.import_module("recorder.sitecustomize")
    return is_needed


def _is_torchvision_without_its_library(arguments: argparse.Namespace) -> bool:
    """Its wheel is built for CUDA: beside torch's CPU build the recorder must declare an operator for its import."""
    env = {**os.environ, "PYTHONPATH": arguments.path}
    tried = subprocess.run([arguments.python, "-c", "import torchvision"], env=env, capture_output=True, text=True)
    return "torchvision::nms" in tried.stderr


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Runs public training code with and without Caboose and compares the two runs.",
        epilog="example: python tests/field/run.py --checkout ~/src/nanoGPT --case nanogpt",
    )
    parser.add_argument("--list", action="store_true", help="the cases, with the repository each one needs")
    parser.add_argument("--case", action="append", choices=CASES, metavar="NAME", help="a case; may be repeated")
    parser.add_argument("--checkout", metavar="DIR", help="the repository of the case")
    parser.add_argument("--all", metavar="DIR", help="run every case whose repository is a directory of DIR")
    parser.add_argument("--again", action="store_true", help="with --all: also cases that have a result")
    parser.add_argument(
        "--work", metavar="DIR", default="field-results", help="results and logs (default: %(default)s)"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter with torch and what the code base needs"
    )
    parser.add_argument("--path", default="", help="more directories for the script's PYTHONPATH")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one run (default: %(default)s)")
    arguments = parser.parse_args()
    if not arguments.list and not arguments.all and not (arguments.case and arguments.checkout):
        parser.error("give --checkout DIR and --case NAME, or --all DIR, or --list")
    return arguments


def _chosen(arguments: argparse.Namespace) -> list[tuple[Case, Path]]:
    root = Path(arguments.all or arguments.checkout).expanduser().resolve()
    names = arguments.case or list(CASES)
    if not root.is_dir():
        raise SystemExit(
            f"{root}: no such directory; clone https://github.com/{CASES[names[0]].repository} and name it"
        )
    found = []
    for name in names:
        case = CASES[name]
        checkout = checkout_of(case, root) if arguments.all else root
        if (checkout / case.proof).exists():
            found.append((case, checkout))
        elif arguments.case:
            raise SystemExit(
                f"{checkout}: has no {case.proof}; the case {name} needs https://github.com/{case.repository}"
            )
    if not found:
        raise SystemExit(f"{root}: has no checkout of any case; --list names the repositories")
    return found


def checkout_of(case: Case, root: Path) -> Path:
    """`root/OWNER-NAME`, or `root/NAME`."""
    owned = root / case.repository.replace("/", "-")
    return owned if owned.is_dir() else root / case.repository.split("/")[1]


def run_case(case: Case, checkout: Path, work: Path, arguments: argparse.Namespace) -> Result:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    runs = []
    for name in ("bare", "watched"):
        copy = work / name / "code"
        shutil.copytree(checkout / case.part, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        if case.prepare is not None:
            case.prepare(copy)
        runs.append(copy)
    bare = run_command(case, runs[0], work / "bare", {"CABOOSE_DISABLED": "1"}, (), arguments)
    with running_daemon(work / "daemon", arguments.python) as daemon:
        env = {"CABOOSE_ENDPOINT": daemon.endpoint, "CABOOSE_JOB": case.name}
        watched = run_command(case, runs[1], work / "watched", env, ("-m", "caboose"), arguments)
        time.sleep(1.0)  # the last step closes when its rank has left
        blind, raised = daemon.findings()
    journal = compare.read_journal(work / "daemon" / "data" / "journal.sqlite") if blind is not None else []
    records = compare.read_record(work / "bare" / "record"), compare.read_record(work / "watched" / "record")
    identical = compare.same_run(*records)
    if sorted(compare.printed_losses(bare.output)) != sorted(compare.printed_losses(watched.output)):
        identical += ", but other losses were printed"
    parts = compare.read_parts(work / "daemon" / "data" / "journal.sqlite") if journal else {}
    if parts:
        numbers = compare.right_parts(parts, records[1], case.watched)
    else:
        logged = compare.logged_losses(work / "watched", case.logged) if case.logged else ()
        numbers = compare.right_numbers(journal, compare.truth(records[1], case.watched), logged)
    write_curves(journal, work / "curves.csv")
    for copy in runs:
        shutil.rmtree(copy, ignore_errors=True)
    return Result(
        case=case.name,
        commit=_commit(checkout),
        exit_codes=[bare.code, watched.code],
        identical=identical,
        numbers=numbers,
        blind=blind or {},
        raised=raised,
        agent_share=_agent_share(journal),
        cpu_seconds=[bare.cpu_seconds, watched.cpu_seconds],
        edits=case.edits,
        lines=[line for line in watched.output.splitlines() if "caboose" in line.lower()][:20],
    )


@dataclass
class Ran:
    """A finished run."""

    code: int
    output: str
    cpu_seconds: float


def run_command(
    case: Case,
    code: Path,
    work: Path,
    env: Mapping[str, str],
    launcher: Sequence[str],
    arguments: argparse.Namespace,
) -> Ran:
    record = work / "record"
    record.mkdir()
    data = work / "data"
    data.mkdir()
    if case.data is not None:
        sys.path[:0] = [str(code / path) for path in case.paths]  # some data is made with the code base's own functions
        case.data(data)
        del sys.path[: len(case.paths)]
    command = _command(case, code, data, launcher, arguments.python)
    paths = [str(HERE / "recorder"), *(str(code / path) for path in case.paths), arguments.path]
    full = {key: value for key, value in os.environ.items() if not key.startswith(("CABOOSE_", "FIELD_"))}
    full |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    full |= {"FIELD_RECORD": str(record), "FIELD_SEED": "1", "CABOOSE_QUIET": "1", "HF_HUB_OFFLINE": "1"}
    full |= {"WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", "HF_HOME": str(work)}
    full["PATH"] = os.pathsep.join((str(Path(arguments.python).parent), full.get("PATH", "")))  # as if activated
    full |= {"FIELD_TORCHVISION": "1"} if arguments.torchvision else {}
    full |= {key: value.format(data=data, code=code) for key, value in case.env.items()} | dict(env)
    log = work / "output.txt"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=code / case.directory, env=full, stdout=output, stderr=output, start_new_session=True
        )
        try:
            process.wait(arguments.timeout)
        except BaseException:
            _end_group(process)
            raise
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(process.returncode, log.read_text(errors="replace"), seconds)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The run's own session: torchrun and its ranks."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _command(case: Case, code: Path, data: Path, launcher: Sequence[str], python: str) -> list[str]:
    filled = [part.format(data=data, code=code) for part in case.command]
    if case.ranks == 1:
        return [python, *launcher, *filled]
    run = ["-m", "torch.distributed.run", f"--nproc-per-node={case.ranks}", "--master-addr=127.0.0.1"]
    return [python, *run, f"--master-port={_free_port()}", *launcher, *filled]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Daemon:
    """A running daemon."""

    endpoint: str
    url: str

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url.rstrip("/") + path, timeout=10) as answer:
            return json.loads(answer.read())

    def findings(self) -> tuple[dict[str, str] | None, list[str]]:
        """What is not seen (None: no job reported), and what was raised, as `rule severity @step`."""
        blind: dict[str, str] | None = None
        raised = []
        for row in self.get("/api/v1/jobs")["jobs"]:
            job = row["job"]
            blind = (blind or {}) | dict(self.get(f"/api/v1/jobs/{job}").get("blind") or {})
            for one in self.get(f"/api/v1/jobs/{job}/findings")["findings"]:
                first = one["first"]
                raised.append(f"{one['rule']} {one['severity']} @{one['onset_step']}: {first['summary']}")
        return blind, raised


@contextlib.contextmanager
def running_daemon(directory: Path, python: str) -> Iterator[Daemon]:
    """A daemon of its own on free loopback ports."""
    directory.mkdir()
    ready = directory / "ready.json"
    command = [python, "-m", "caboose_daemon", "daemon", "--listen", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0"]
    command += ["--data-dir", str(directory / "data"), "--ready-file", str(ready)]
    with (directory / "daemon.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        deadline = time.monotonic() + 240
        while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if not ready.exists():
            raise OSError(f"the daemon did not start: {(directory / 'daemon.log').read_text()}")
        addresses = json.loads(ready.read_text())
        yield Daemon(addresses["endpoint"], addresses["url"])
    finally:
        process.terminate()
        process.wait(20)


def _agent_share(journal: list[dict[str, Any]]) -> float | None:
    pairs = [(row["agent_seconds"], row["step_seconds"]) for row in journal]
    known = [(agent, step) for agent, step in pairs if agent is not None and step]
    return sum(agent for agent, _ in known) / sum(step for _, step in known) if known else None


def write_curves(journal: list[dict[str, Any]], path: Path) -> None:
    """The reported curves as CSV, so that `caboose replay` can judge them again."""
    names = ("step", "loss", "lr", "grad_norm", "step_seconds")
    lines = [",".join(names)]
    for row in journal:
        lines.append(",".join("" if row[name] is None else repr(row[name]) for name in names))
    path.write_text("\n".join(lines) + "\n")


def _commit(checkout: Path) -> str:
    said = checkout.with_name(checkout.name + ".commit")  # for an export without its .git
    if said.exists():
        return said.read_text().split()[0]
    asked = subprocess.run(["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return asked.stdout.strip() or "unknown"


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    print("interrupted; results so far are kept, --all goes on from there", file=sys.stderr)
    sys.exit(130)
