"""What the commands that look at runs share: whom to ask, and one line where nobody can answer."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from caboose_daemon.cli.exits import fail
from caboose_daemon.cli.request_client import connect
from caboose_daemon.offline.records.source import JournalSource, LiveSource, RecordSource, SourceError
from caboose_daemon.out.api.client import ClientError

F = TypeVar("F", bound=Callable[..., None])
PIPED_WIDTH = 120
MAX_WIDTH = 120
daemon_option = click.option(
    "--daemon", "address", metavar="URL", help="The daemon to ask.  [default: CABOOSE_HTTP or 127.0.0.1:9757]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")
token_option = click.option(
    "--token-file", envvar="CABOOSE_TOKEN_FILE", help="The daemon's token.  [default: in its data]"
)
journal_option = click.option(
    "--journal",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read this journal.sqlite instead of asking a daemon.",
)


def source(address: str | None, journal: Path | None) -> RecordSource:
    """A journal where one is named, else the daemon; ends the command where the one cannot be read."""
    if journal is None:
        return LiveSource(connect(address))
    if address is not None:
        fail("--daemon and --journal: give one of them")
    try:
        return JournalSource(journal)
    except SourceError as error:
        fail(str(error))


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the command with one line where nobody answers, or does not know."""
    try:
        yield
    except (ClientError, SourceError) as error:
        fail(str(error))


def only_job(where: RecordSource, named: str | None) -> str:
    """The job that is meant: the one that was named, or the only one."""
    jobs = [str(row["job"]) for row in where.jobs()]
    if named is not None:
        if named not in jobs:
            fail(f"no job {named!r}; {where.name} knows {', '.join(jobs[:20]) or 'no job yet'}")
        return named
    if not jobs:
        fail(f"{where.name} knows no job yet")
    if len(jobs) > 1:
        fail(f"which job? {where.name} knows {', '.join(jobs[:20])}")
    return jobs[0]


def make_console() -> Console:
    """Standard output: as wide as the terminal, within reason; a pipe gets a fixed width."""
    width = int(os.environ.get("COLUMNS", "0") or 0) if sys.stdout.isatty() else PIPED_WIDTH
    console = Console(width=width or None, highlight=False)
    return console if console.width <= MAX_WIDTH else Console(width=MAX_WIDTH, highlight=False)


def print_json(value: Any) -> None:
    """One JSON object on a line."""
    click.echo(json.dumps(value, allow_nan=False))
