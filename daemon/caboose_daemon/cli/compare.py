"""`caboose compare`."""

import click

from caboose_daemon.cli.comparison_pages import page
from caboose_daemon.cli.options import daemon_option, fail, json_option, load_runs, make_console, print_json
from caboose_daemon.offline.comparing.comparison import compare as compared

MAX_RUNS = 100
WIDEST = 400
"""Columns: more runs fit beside each other in a wide terminal."""


@click.command()
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True)
@json_option
@daemon_option
def compare(runs: tuple[str, ...], as_json: bool, address: str | None) -> None:
    """Put runs side by side: how low, how fast, how calm, what differs, and what that is evidence for.

    RUN is a job the daemon knows, a job in a journal (FILE.sqlite:JOB, or FILE.sqlite for all of its jobs), or a log
    that `caboose replay` reads. Losses are compared at the last step that all runs reached. Settings come from the
    run itself; for a log, from config.json, hparams.yaml or NAME.config.json beside it.

    A star marks the best of a line. What is said of settings rests on runs that differ in one of them alone. A run
    whose loss is not finite in the end ranks last, whatever it was before.

    \b
    Example:
        caboose compare llama-7b llama-7b-lr
        caboose compare caboose-data/journal.sqlite:llama-7b runs/old/trainer_state.json
        caboose compare sweep/*.csv --json | jq '.statements[].text'

    Exit codes: 0 compared (whatever was found), 2 a run could not be had, or there are fewer than two.
    """
    loaded = load_runs(runs, address)
    if len(loaded) < 2:
        fail(f"{', '.join(runs)}: one run; name two or more, jobs or files")
    if len(loaded) > MAX_RUNS:
        fail(f"{len(loaded)} runs; at most {MAX_RUNS} are compared at a time, name fewer")
    result = compared(loaded)
    if as_json:
        print_json(result.as_object())
    else:
        console = make_console(WIDEST)
        console.print(page(result, console.width))
