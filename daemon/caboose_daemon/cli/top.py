"""`caboose top`."""

import os
import signal
import sys
import time
from types import FrameType

import click
from rich.console import Console
from rich.live import Live

from caboose_daemon.cli.console import SafeConsole, echo
from caboose_daemon.cli.keyboard import keyboard
from caboose_daemon.cli.options import EXIT_OK, connect, daemon_option, example, fail, json_lines_option, print_json
from caboose_daemon.cli.top_pages import plain_lines, screen
from caboose_daemon.cli.top_view import View
from caboose_daemon.offline.runs.source import DaemonSource


@click.command(
    epilog=example("caboose top", "caboose top llama-7b --every 5", "caboose top --json -n 1 | jq '.jobs[0].loss'")
)
@click.argument("job", required=False)
@click.option(
    "--every",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Time between refreshes.",
)
@click.option(
    "-n", "num", metavar="TIMES", type=click.IntRange(min=1), help="End after this many refreshes.  [default: at q]"
)
@click.option("--plain", is_flag=True, help="Print lines instead of a screen, as without a terminal.")
@json_lines_option
@daemon_option
def top(job: str | None, every: float, num: int | None, plain: bool, as_json: bool, address: str | None) -> None:
    """Watch all jobs live, or one job with its curves, incidents and ranks; the only one at once.

    Arrows (or j and k) choose a job, Enter opens it, Esc or the left arrow goes back, l switches the curves to a
    logarithmic scale, q or Ctrl-C ends the command. Without a terminal it prints a line for each change.

    Exit codes: 0 ended as asked, 2 no such job, no daemon answers.
    """
    view = View(DaemonSource(connect(address)), job)
    view.refresh()
    if view.problem:
        fail(view.problem)
    if job is None and len(view.jobs) == 1:
        view.open()
        view.refresh()
    console = SafeConsole()
    signal.signal(signal.SIGTERM, _end)
    try:
        if as_json or plain or not console.is_terminal or os.environ.get("TERM") == "dumb":
            _write(view, every, num, as_json=as_json)
        else:
            _draw(view, console, every, num)
    except KeyboardInterrupt:
        sys.exit(EXIT_OK)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    """Ends as Ctrl-C does, so that the terminal is restored."""
    raise KeyboardInterrupt


def _draw(view: View, console: Console, every: float, num: int | None) -> None:
    with keyboard() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(view, console), refresh=True)
            if num is not None and (num := num - 1) == 0:
                return
            key = keys.wait(every)
            if not view.press(key):
                return
            if not key or key in ("enter", "back"):
                view.refresh()


def _write(view: View, every: float, num: int | None, *, as_json: bool) -> None:
    printed: dict[str, str] = {}
    while True:
        if as_json:
            print_json(view.as_object())
        else:
            for line in plain_lines(view, printed):
                echo(line)
        sys.stdout.flush()
        if num is not None and (num := num - 1) == 0:
            return
        time.sleep(every)
        view.refresh()
