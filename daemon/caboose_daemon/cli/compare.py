"""`caboose compare`."""

import click

from caboose_daemon.cli.comparison_pages import page
from caboose_daemon.cli.options import daemon_option, example, fail, json_option, load_runs, make_console, print_json
from caboose_daemon.offline.comparing.comparison import compare as compared

MAX_RUNS = 100
WIDEST = 400
"""Columns: more runs fit beside each other in a wide terminal."""


@click.command(
    epilog=example(
        "caboose compare llama-7b llama-7b-lr",
        "caboose compare caboose-data/journal.sqlite:llama-7b runs/old/trainer_state.json",
        "caboose compare sweep/*.csv --json | jq '.statements[].text'",
    )
)
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True)
@json_option
@daemon_option
def compare(runs: tuple[str, ...], as_json: bool, address: str | None) -> None:
    """Compare runs: final loss, speed, stability, settings, and which setting made the difference.

    RUN is a job of the daemon, a job in a journal (FILE.sqlite:JOB, or FILE.sqlite for all of its jobs), or a log that
    `caboose replay` reads. Losses are compared at the last step that all runs reached. Settings come from the run; for
    a log, from config.json, hparams.yaml or NAME.config.json beside it.

    A star marks the best value of a line. A setting gets credit only from runs that differ in that setting alone. A
    run whose loss is not finite at the end ranks last.

    Exit codes: 0 compared (whatever was found), 2 a run cannot be read, or fewer than two runs.
    """
    loaded = load_runs(runs, address)
    if len(loaded) < 2:
        fail(f"{', '.join(runs)}: one run; name two or more")
    if len(loaded) > MAX_RUNS:
        fail(f"{len(loaded)} runs; compare at most {MAX_RUNS} at a time")
    result = compared(loaded)
    if as_json:
        print_json(result.as_object())
    else:
        console = make_console(WIDEST)
        console.print(page(result, console.width))
