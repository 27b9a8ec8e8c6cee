"""`caboose jobs`."""

from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table

from caboose_daemon.cli.sources import (
    daemon_option,
    journal_option,
    json_option,
    make_console,
    one_line_errors,
    print_json,
    source,
)
from caboose_daemon.words import duration, figure, health, state


@click.command()
@journal_option
@daemon_option
@json_option
def jobs(journal: Path | None, address: str | None, as_json: bool) -> None:
    """List the jobs: how each stands, how far it is, and whether anything is wrong.

    \b
    Example:
        caboose jobs
        caboose jobs --json | jq -r '.jobs[] | select(.health == "critical") | .job'
        caboose jobs --journal caboose-data/journal.sqlite

    Exit codes: 0 listed (whatever their health), 2 nobody at --daemon, or --journal cannot be read.
    """
    with one_line_errors():
        where = source(address, journal)
        rows = where.jobs()
    if as_json:
        print_json({"jobs": rows})
    elif rows:
        make_console().print(jobs_table(rows))
    else:
        click.echo(f"{where.name} knows no job yet; a run that calls caboose.attach(...) shows up by itself")


def jobs_table(rows: list[dict[str, Any]], chosen: int | None = None) -> Table:
    """One line a job; `chosen` is the one that is marked."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=False)
    if chosen is not None:
        table.add_column("", width=1, no_wrap=True)
    table.add_column("job", overflow="fold", min_width=12, max_width=40)
    table.add_column("health", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name in ("step", "loss", "ranks", "heard"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("rollback", no_wrap=True)
    for place, row in enumerate(rows):
        cells: list[Any] = [] if chosen is None else ["▸" if place == chosen else ""]
        num_open = f" {row['num_open']}" if row["num_open"] else ""
        cells += [row["job"], health(row["health"]).append(num_open), state(row["state"])]
        cells += [f"{row['step']:,}", figure(row["loss"]), f"{row['num_live']}/{row['world']}"]
        cells += [duration(row["silent_seconds"]), row["rollback"]]
        table.add_row(*cells, style="bold" if place == chosen else "")
    return table
