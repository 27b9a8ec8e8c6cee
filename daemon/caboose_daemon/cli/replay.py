"""`caboose replay`."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
from rich.progress import Progress

from caboose_daemon.cli.console import SafeConsole
from caboose_daemon.cli.options import (
    EXIT_OK,
    EXIT_USAGE,
    configured_file,
    example,
    json_lines_option,
    load_config,
    print_json,
    progress_bar,
)
from caboose_daemon.offline.replay import comparison, report
from caboose_daemon.offline.replay.logs import Log, LogError, read_logs
from caboose_daemon.offline.replay.player import Judged, play
from caboose_daemon.rules.parts.rule import RuleConfig

Configs = Mapping[str, RuleConfig]
PIPED_WIDTH = 200
"""Keeps each finding on one line in a pipe."""


@click.command(
    epilog=example(
        "caboose replay trainer_state.json",
        "caboose replay runs/*.csv --config stricter.toml",
        "caboose replay caboose-data/journal.sqlite --json | jq .incidents",
    )
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_lines_option
@click.option(
    "--config",
    "other_file",
    type=click.Path(path_type=Path),
    help="Compare with this configuration: incidents gained and lost.",
)
def replay(files: tuple[Path, ...], other_file: Path | None, as_json: bool) -> None:
    """Run the rules over logs of finished runs: what they would have found, and when.

    Reads CSV (step, loss, grad_norm, lr, val_loss), Hugging Face's trainer_state.json, JSONL, Lightning's metrics.csv,
    TensorBoard event files or their directory, a run of W&B (its directory, or its history as CSV or JSON), of MLflow
    (mlflow.db, or the run's directory in mlruns) or Trackio (PROJECT.db), and Caboose's journal.sqlite. Thresholds come
    from caboose.toml (or CABOOSE_CONFIG), or are the defaults.

    Exit codes: 0 all files were replayed (whatever was found), 2 a file or the configuration cannot be read.
    """
    ours = load_config(configured_file()).rules
    other = load_config(other_file).rules if other_file is not None else None
    all_judged, differences = [], []
    is_broken = False
    out, errors = SafeConsole(width=None if sys.stdout.isatty() else PIPED_WIDTH), SafeConsole(stderr=True)
    with progress_bar(errors) as progress:
        for path in files:
            try:
                for log in read_logs(path):
                    judged = _played(log, ours, progress)
                    difference = None if other is None else comparison.compare(judged, _played(log, other, progress))
                    all_judged.append(judged)
                    if difference is not None:
                        differences.append(difference)
                    if as_json:
                        extra = {} if difference is None else {"compared": difference.as_object()}
                        print_json({**report.as_object(judged), **extra})
                    elif difference is None:
                        out.print(report.as_text(judged))
            except LogError as error:
                is_broken = True
                errors.print(f"caboose: {error}", markup=False, highlight=False, soft_wrap=True)
    if not as_json:
        for line in _last_lines(all_judged, differences, str(other_file)):
            out.print(line, markup=False, highlight=False, soft_wrap=True)
    sys.exit(EXIT_USAGE if is_broken else EXIT_OK)


def _played(log: Log, configs: Configs, progress: Progress) -> Judged:
    task = progress.add_task(Path(log.file).name[-40:], total=len(log.steps))
    judged = play(log, configs, lambda done: progress.update(task, completed=done))
    progress.remove_task(task)
    return judged


def _last_lines(all_judged: list[Judged], differences: list[comparison.Difference], name: str) -> Iterator[str]:
    if len(all_judged) > 1 or differences:
        yield report.total(all_judged)
    if differences:
        yield from comparison.lines(differences, name)
