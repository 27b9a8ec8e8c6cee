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

from caboose_daemon.cli.console import SafeConsole
from caboose_daemon.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, example, fail
from caboose_daemon.offline.runs.source import DaemonSource
from caboose_daemon.ops.demo.incident import news, opening
from caboose_daemon.ops.demo.run import WatchedRun, start_run
from caboose_daemon.ops.demo.screen import screen, summary
from caboose_daemon.ops.processes import ProcessError, end, start_daemon, tail
from caboose_daemon.out.api.client import Client

JOB = "demo"
SPIKE_SHARE = 0.6
MAX_SECONDS = 110.0
"""A slow machine ends the run after this long, and prints the summary of what there is."""


@click.command(epilog=example("caboose demo", "caboose demo --keep      # then open the live page in a browser"))
@click.option("--steps", type=click.IntRange(60, 100_000), default=300, show_default=True, help="Steps to train.")
@click.option("--keep", is_flag=True, help="Keep the daemon and its page running afterwards, until Ctrl-C.")
def demo(steps: int, keep: bool) -> None:
    """Watch a real two-rank training run, with a fault in it, from start to end.

    Starts a daemon on free ports of this machine and trains a small transformer on two ranks under torchrun. Some
    batches are corrupted while the learning rate is 40 times too high. The demo shows what Caboose finds, the likely
    cause, and the rollback of both ranks. All processes are ended and all files removed at the end.

    Exit codes: 0 done, 1 a process failed, 2 cannot run here, 130 interrupted.
    """
    if importlib.util.find_spec("torch") is None:
        fail("the demo trains a real model and needs torch: pip install torch")
    console = SafeConsole()
    directory = Path(tempfile.mkdtemp(prefix="caboose-demo-"))
    processes: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _run(console, directory, processes, steps=steps, keep=keep)
    except ProcessError as error:
        console.print(f"caboose: {error}", style="red", markup=False)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        console.print("\nInterrupted; ending all processes.", style="dim")
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave processes behind
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
    job = start_run(directory, endpoint, job=JOB, steps=steps, spike_at=spike_at)
    processes.append(job)
    run = WatchedRun(DaemonSource(Client(url, timeout=2.0)), JOB)
    if console.is_terminal:
        _watch_live(console, run, job, steps)
    else:
        _watch_plain(console, run, job, steps)
    if job.poll() not in (0, None):
        raise ProcessError(f"the training job failed with exit code {job.returncode}:\n{tail(directory / 'job.log')}")
    _let_settle(run)
    if not run.steps:
        raise ProcessError(f"no step reached the daemon:\n{tail(directory / 'daemon.log')}")
    console.print(summary(run, spike_at=spike_at, width=min(console.width, 110)))
    if keep:
        console.print(f"  The page keeps running at {run.page}  (Ctrl-C ends it)")
        daemon.wait()


def _watch_live(console: Console, run: WatchedRun, job: "subprocess.Popen[bytes]", steps: int) -> None:
    with Live(console=console, auto_refresh=False, transient=False) as live:
        deadline = time.monotonic() + MAX_SECONDS
        while job.poll() is None and time.monotonic() < deadline:
            run.refresh()
            note = "training" if run.steps else "starting two ranks ..."
            live.update(screen(run, console, total=steps, note=note), refresh=True)
            time.sleep(0.25)
        run.refresh()
        live.update(screen(run, console, total=steps, note="done"), refresh=True)


def _watch_plain(console: Console, run: WatchedRun, job: "subprocess.Popen[bytes]", steps: int) -> None:
    console.print(f"live page {run.page}", soft_wrap=True)
    printed: dict[str, str] = {}
    deadline = time.monotonic() + MAX_SECONDS
    next_line = 0.0
    while job.poll() is None and time.monotonic() < deadline:
        run.refresh()
        if run.steps and time.monotonic() >= next_line:
            next_line = time.monotonic() + 5.0
            last, loss, norm = run.steps[-1], run.curve("loss")[-1], run.curve("grad_norm")[-1]
            console.print(f"step {last['step']}/{steps}  loss {loss:.4g}  gradient norm {norm:.4g}")
        for incident in run.incidents:
            if incident["id"] not in printed:
                console.print(opening(incident), markup=False, highlight=False)
            if printed.get(incident["id"]) != (line := news(incident)):
                printed[incident["id"]] = line
                console.print(line, markup=False, highlight=False)
        for decision in run.decisions:
            if printed.get(decision["id"]) != decision["state"]:
                printed[decision["id"]] = decision["state"]
                console.print(f"{decision['summary']}: {decision['state']}", markup=False, highlight=False)
        time.sleep(0.25)


def _let_settle(run: WatchedRun) -> None:
    """Waits until the daemon has aligned the last reports, which the ranks send as they leave."""
    deadline = time.monotonic() + 3.0
    before = -1
    while time.monotonic() < deadline:
        run.refresh()
        if run.detail.get("state") == "ended" and len(run.steps) == before:
            return
        before = len(run.steps)
        time.sleep(0.2)
