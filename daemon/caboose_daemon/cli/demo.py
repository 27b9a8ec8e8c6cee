"""`caboose demo`."""

import importlib.util
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from caboose_daemon.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, fail
from caboose_daemon.offline.runs.source import DaemonSource
from caboose_daemon.ops.demo.incident import news, opening
from caboose_daemon.ops.demo.job import start_job
from caboose_daemon.ops.demo.screen import screen, summary
from caboose_daemon.ops.demo.watcher import Watcher
from caboose_daemon.ops.processes import ProcessError, end, start_daemon, tail
from caboose_daemon.out.api.client import Client

JOB = "demo"
SPIKE_SHARE = 0.6
MAX_SECONDS = 110.0
"""After this long, on a slow machine, the run is ended and summed up as it is."""


@click.command()
@click.option("--steps", type=click.IntRange(60, 100_000), default=300, show_default=True, help="Steps to train.")
@click.option("--keep", is_flag=True, help="Leave daemon and page up afterwards, until Ctrl-C.")
def demo(steps: int, keep: bool) -> None:
    """Watch a real two-rank training run, with a fault in it, from start to end.

    Starts a daemon on free ports of this machine, trains a small transformer on two ranks under torchrun, corrupts
    some batches while the learning rate is 40 times too high, and shows what Caboose makes of it: what it finds, why
    it happened, and how it takes both ranks back to before. Everything it starts is ended again, and its files are
    removed.

    \b
    Example:
        caboose demo --keep      # and look at the live page in a browser

    Exit codes: 0 done, 1 something failed, 2 cannot run here, 130 interrupted.
    """
    if importlib.util.find_spec("torch") is None:
        fail("the demo trains a real model and needs torch: pip install torch")
    console = Console()
    directory = Path(tempfile.mkdtemp(prefix="caboose-demo-"))
    processes: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _run(console, directory, processes, steps=steps, keep=keep)
    except ProcessError as error:
        console.print(f"caboose: {error}", style="red", markup=False)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        console.print("\nInterrupted; ending what was started.", style="dim")
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave anything behind
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for process in reversed(processes):
            end(process)
        shutil.rmtree(directory, ignore_errors=True)


def _run(
    console: Console, directory: Path, processes: "list[subprocess.Popen[bytes]]", *, steps: int, keep: bool
) -> None:
    spike_at = int(steps * SPIKE_SHARE)
    daemon, endpoint, url = start_daemon(directory, "--rollback", "auto")
    processes.append(daemon)
    job = start_job(directory, endpoint, job=JOB, steps=steps, spike_at=spike_at)
    processes.append(job)
    watcher = Watcher(DaemonSource(Client(url, timeout=2.0)), JOB)
    if console.is_terminal:
        _watch_live(console, watcher, job, steps)
    else:
        _watch_plain(console, watcher, job, steps)
    if job.poll() not in (0, None):
        raise ProcessError(f"the training job failed with exit code {job.returncode}:\n{tail(directory / 'job.log')}")
    _let_settle(watcher)
    if not watcher.steps:
        raise ProcessError(f"no step reached the daemon:\n{tail(directory / 'daemon.log')}")
    console.print(summary(watcher, spike_at=spike_at, width=min(console.width, 110)))
    if keep:
        console.print(f"  The page stays up at {watcher.page}  (Ctrl-C ends it)")
        daemon.wait()


def _watch_live(console: Console, watcher: Watcher, job: "subprocess.Popen[bytes]", steps: int) -> None:
    with Live(console=console, auto_refresh=False, transient=False) as live:
        deadline = time.monotonic() + MAX_SECONDS
        while job.poll() is None and time.monotonic() < deadline:
            watcher.look()
            note = "training" if watcher.steps else "starting two ranks ..."
            live.update(screen(watcher, console, total=steps, note=note), refresh=True)
            time.sleep(0.25)
        watcher.look()
        live.update(screen(watcher, console, total=steps, note="done"), refresh=True)


def _watch_plain(console: Console, watcher: Watcher, job: "subprocess.Popen[bytes]", steps: int) -> None:
    console.print(f"live page {watcher.page}", soft_wrap=True)
    told: dict[str, str] = {}
    deadline = time.monotonic() + MAX_SECONDS
    next_line = 0.0
    while job.poll() is None and time.monotonic() < deadline:
        watcher.look()
        if watcher.steps and time.monotonic() >= next_line:
            next_line = time.monotonic() + 5.0
            last, loss, norm = watcher.steps[-1], watcher.curve("loss")[-1], watcher.curve("grad_norm")[-1]
            console.print(f"step {last['step']}/{steps}  loss {loss:.4g}  gradient norm {norm:.4g}")
        for incident in watcher.incidents:
            if incident["id"] not in told:
                console.print(opening(incident), markup=False, highlight=False)
            if told.get(incident["id"]) != (line := news(incident)):
                told[incident["id"]] = line
                console.print(line, markup=False, highlight=False)
        for decision in watcher.decisions:
            if told.get(decision["id"]) != decision["state"]:
                told[decision["id"]] = decision["state"]
                console.print(f"{decision['summary']}: {decision['state']}", markup=False, highlight=False)
        time.sleep(0.25)


def _let_settle(watcher: Watcher) -> None:
    """The last reports leave the ranks at their good-bye; waits for the daemon to have put them together."""
    deadline = time.monotonic() + 3.0
    before = -1
    while time.monotonic() < deadline:
        watcher.look()
        if watcher.detail.get("state") == "ended" and len(watcher.steps) == before:
            return
        before = len(watcher.steps)
        time.sleep(0.2)
