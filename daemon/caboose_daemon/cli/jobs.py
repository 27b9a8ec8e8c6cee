"""`caboose jobs`."""

from pathlib import Path
from typing import Any

import click
from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from caboose_daemon.cli.console import echo
from caboose_daemon.cli.options import (
    daemon_option,
    example,
    journal_option,
    json_option,
    make_console,
    one_line_errors,
    print_json,
    source,
)
from caboose_daemon.cli.style import health, state
from caboose_daemon.format import duration, figure

NUMBERS = ("step", "loss", "ranks", "heard")
COLUMNS = ("health", "state", *NUMBERS, "rollback")
LEFT_OUT = ("rollback", "heard", "state", "ranks", "loss", "step")
"""Columns dropped in a narrow terminal, in this order."""
LEAST_NAME = 15
GAP = 2


@click.command(
    epilog=example(
        "caboose jobs",
        "caboose jobs --json | jq -r '.jobs[] | select(.health == \"critical\") | .job'",
        "caboose jobs --journal caboose-data/journal.sqlite",
    )
)
@journal_option
@daemon_option
@json_option
def jobs(journal: Path | None, address: str | None, as_json: bool) -> None:
    """List the jobs with their health, state, step and loss.

    Exit codes: 0 listed (whatever their health), 2 no daemon answers, or --journal cannot be read.
    """
    with one_line_errors():
        where = source(address, journal)
        rows = where.jobs()
    if as_json:
        print_json({"jobs": rows})
    elif rows:
        console = make_console()
        console.print(jobs_table(rows, console.width))
    else:
        echo(f"{where.name} knows no job yet; a run appears once it calls caboose.attach(...)")


def jobs_table(rows: list[dict[str, Any]], width: int, chosen: int | None = None) -> Table:
    """One line per job, `width` characters wide; `chosen` is marked."""
    columns = {name: [Text(name), *(_cell(name, row) for row in rows)] for name in COLUMNS}
    longest = max(cell_len(str(row["job"])) for row in rows)
    mark = 0 if chosen is None else 1 + GAP

    def room() -> int:
        return width - mark - sum(GAP + max(cell.cell_len for cell in cells) for cells in columns.values())

    for name in LEFT_OUT:
        if room() < min(longest, LEAST_NAME):
            del columns[name]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=False)
    if chosen is not None:
        table.add_column("", width=1, no_wrap=True)
    table.add_column("job", no_wrap=True, overflow="ellipsis", max_width=max(1, room()))
    for name in columns:
        table.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=True)
    for place, row in enumerate(rows):
        cells: list[Any] = [] if chosen is None else ["▸" if place == chosen else ""]
        cells += [row["job"], *(cells[1 + place] for cells in columns.values())]
        table.add_row(*cells, style="bold" if place == chosen else "")
    return table


def _cell(name: str, row: dict[str, Any]) -> Text:
    if name == "health":
        return health(row["health"]).append(f" {row['num_open']}" if row["num_open"] else "")
    if name == "state":
        return state(row["state"])
    plain = {
        "step": f"{row['step']:,}",
        "loss": figure(row["loss"]),
        "ranks": f"{row['num_live']}/{row['world']}",
        "heard": duration(row["silent_seconds"]),
        "rollback": row["rollback"],
    }
    return Text(plain[name])
