"""`caboose jobs`."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from caboose_daemon.cli.console import echo
from caboose_daemon.cli.options import (
    DAEMON_DEFAULT,
    configured_fleet,
    connect,
    example,
    fail,
    journal_option,
    json_option,
    make_console,
    one_line_errors,
    print_json,
    source,
)
from caboose_daemon.cli.style import COLOURS, MARKS, health, state
from caboose_daemon.format import duration, figure
from caboose_daemon.offline.runs.fleet import jobs_of
from caboose_daemon.offline.runs.source import DaemonSource, RunSource

NUMBERS = ("step", "loss", "ranks", "heard")
COLUMNS = ("health", "state", *NUMBERS, "rollback")
LEFT_OUT = ("rollback", "heard", "state", "ranks", "loss", "step")
"""Columns dropped in a narrow terminal, in this order."""
LEAST_NAME = 15
GAP = 2
URGENCY = ("critical", "warning", "info", "ok")


@click.command(
    epilog=example(
        "caboose jobs",
        "caboose jobs --json | jq -r '.jobs[] | select(.health == \"critical\") | .job'",
        "caboose jobs --journal caboose-data/journal.sqlite",
        "caboose jobs --daemon host1:9757 --daemon host2:9757",
    )
)
@journal_option
@click.option(
    "--daemon",
    "addresses",
    metavar="URL",
    multiple=True,
    help=f"The daemon to ask; may be given several times.  {DAEMON_DEFAULT}",
)
@json_option
def jobs(journal: Path | None, addresses: tuple[str, ...], as_json: bool) -> None:
    """List the jobs with their health, state, step and loss, the worst first.

    Under the table: what is open in each job, and how each run that is over ended and stood. An ended run stays red
    until somebody acknowledges its incident (`caboose ack`) or launches it again. Several daemons, given here or as
    `daemons` in the section [fleet] of caboose.toml, are listed together; one that does not answer is named.

    Exit codes: 0 listed (whatever their health), 2 no daemon answers, or --journal cannot be read.
    """
    daemons = addresses or (() if journal is not None or "CABOOSE_HTTP" in os.environ else configured_fleet())
    with one_line_errors():
        if len(daemons) > 1:
            if journal is not None:
                fail("--daemon and --journal: give one of them")
            print_fleet([DaemonSource(connect(one)) for one in daemons], as_json=as_json)
            return
        where = source(daemons[0] if daemons else None, journal)
        if as_json:
            print_json({"jobs": worst_first(where.jobs())})
        else:
            print_jobs(where, make_console())


def print_jobs(where: RunSource, console: Console) -> None:
    """The table, and a line for each job that is not well."""
    rows = worst_first(where.jobs())
    if not rows:
        echo(f"{where.name} knows no job yet; a run appears once it calls caboose.attach(...)")
        return
    console.print(jobs_table(rows, console.width))
    for line in reasons(rows):
        console.print(line, soft_wrap=True)


def print_fleet(daemons: Sequence[DaemonSource], *, as_json: bool) -> None:
    """The jobs of several daemons, and the daemons that did not answer."""
    found = jobs_of(daemons)
    rows = worst_first(list(found.rows))
    if as_json:
        print_json({"jobs": rows, "unanswered": found.unanswered})
        return
    for one in found.unanswered:
        echo(f"caboose: {one['error']}", err=True)
    if not rows:
        echo(f"{len(daemons) - len(found.unanswered)} daemons know no job yet")
        return
    console = make_console()
    console.print(jobs_table(rows, console.width))
    for line in reasons(rows):
        console.print(line, soft_wrap=True)


def worst_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By health, then running ones before those that are over, then the last heard first."""

    def place(row: dict[str, Any]) -> tuple[int, bool, float]:
        health = URGENCY.index(row["health"]) if row["health"] in URGENCY else len(URGENCY)
        return health, row["state"] not in ("running", "crashed"), row["silent_seconds"]

    return sorted(rows, key=place)


def shown_state(row: dict[str, Any]) -> str:
    """The state; silent where no rank of a running job is heard."""
    return "silent" if row["state"] == "running" and row["num_live"] == 0 else str(row["state"])


def reasons(rows: list[dict[str, Any]]) -> Iterator[Text]:
    """A line for each job that is not well, and for each that ended otherwise than well."""
    for row in rows:
        text = reason(row)
        if text:
            mark = Text(f"{MARKS.get(row['health'], '?')} ", COLOURS.get(row["health"], ""))
            yield Text.assemble(mark, (row["job"], "bold"), f"  {text}")


def reason(row: dict[str, Any]) -> str:
    """Why a job is not well, or how it ended; empty where nothing is to be said."""
    ending = row.get("ending")
    if ending is not None:
        if ending["state"] == "ended" and not ending["unresolved"]:
            return ""
        return f"{ending['text']}{' (acknowledged)' if ending['is_acknowledged'] else ''}"
    worst = row.get("worst")
    if worst is None:
        return ""
    more = f"; {row['num_open'] - 1} more open" if row["num_open"] > 1 else ""
    return f"{worst['headline']}{more}  ({worst['id']})"


def jobs_table(rows: list[dict[str, Any]], width: int, chosen: int | None = None) -> Table:
    """One line per job, `width` characters wide; `chosen` is marked."""
    names = (*COLUMNS, "daemon") if any("daemon" in row for row in rows) else COLUMNS
    columns = {name: [Text(name), *(_cell(name, row) for row in rows)] for name in names}
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
        if (row.get("ending") or {}).get("is_acknowledged"):
            return health("info", "acknowledged")
        return health(row["health"]).append(f" {row['num_open']}" if row["num_open"] else "")
    if name == "state":
        return state(shown_state(row))
    plain = {
        "step": f"{row['step']:,}",
        "loss": figure(row["loss"]),
        "ranks": f"{row['num_live']}/{row['world']}",
        "heard": duration(row["silent_seconds"]) if row["silent_seconds"] >= 1 else "now",
        "rollback": row["rollback"],
        "daemon": str(row.get("daemon", "")).removeprefix("http://"),
    }
    return Text(plain[name])
