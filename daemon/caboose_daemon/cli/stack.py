"""`caboose stack`."""

import os
import sys
from pathlib import Path

import click
from rich.table import Table

from caboose_daemon import assets
from caboose_daemon.cli.console import SafeConsole, echo
from caboose_daemon.cli.options import (
    DAEMON_DEFAULT,
    EXIT_FAILED,
    EXIT_OK,
    daemon_address,
    example,
    fail,
    json_option,
    print_json,
)
from caboose_daemon.ops.stack import stack as stacks
from caboose_daemon.ops.stack.programs import BinaryError
from caboose_daemon.out.api.client import Client
from caboose_wire.endpoints import DEFAULT_ENDPOINT

DIRECTORY = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("caboose-stack"),
    show_default=True,
    help="Its directory.",
)


@click.group(
    epilog=example(
        "caboose stack up --with-daemon --webhook http://127.0.0.1:8000/page",
        "caboose stack status",
        "caboose stack down",
    )
)
def stack() -> None:
    """Run Prometheus and Alertmanager beside the daemon, configured.

    On the usual ports where these are free, so that agents and Grafana find them without configuration. The processes
    keep running after the command; their files and logs are in --dir. Other commands find the stack's daemon and its
    token. For one machine, and for trying out the alerts; for a cluster see deploy/.
    """


@stack.command(epilog=example("caboose stack up --daemon 127.0.0.1:9757"))
@DIRECTORY
@click.option("--daemon", "address", metavar="URL", help=f"The daemon to scrape.  {DAEMON_DEFAULT}")
@click.option(
    "--with-daemon", is_flag=True, help="Start a daemon too.  [default: if none answers at the usual address]"
)
@click.option("--webhook", metavar="URL", help="Where Alertmanager sends alerts.")
@click.option(
    "--scrape-seconds",
    type=click.FloatRange(0.1, 300),
    default=5.0,
    show_default=True,
    help="Prometheus' scrape interval.",
)
@click.option(
    "--wait-seconds",
    type=click.FloatRange(0.1, 300),
    default=10.0,
    show_default=True,
    help="Alertmanager's group_wait: how long before it notifies.",
)
@click.option(
    "--ports",
    type=click.Choice(["usual", "free"]),
    default="usual",
    show_default=True,
    help="usual: 5757 and 9757, 9090, 9093, each where it is free; free: any free ones.",
)
@json_option
def up(
    directory: Path,
    address: str | None,
    with_daemon: bool,
    webhook: str | None,
    scrape_seconds: float,
    wait_seconds: float,
    ports: str,
    as_json: bool,
) -> None:
    """Start Prometheus and Alertmanager, and a daemon unless one answers; of a stack, start the parts that are dead.

    A dead part is started again in its place: at its port, with its data and its settings.

    Exit codes: 0 all parts are ready, 1 one did not start (no process is left running), 2 cannot start as asked.
    """
    if with_daemon and address:
        fail("--with-daemon and --daemon: give one of them")
    daemon = None if with_daemon else _daemon_to_scrape(address)
    try:
        made = stacks.up(
            directory.resolve(),
            daemon=daemon,
            rules=assets.alerts(),
            webhook=webhook,
            scrape_seconds=scrape_seconds,
            wait_seconds=wait_seconds,
            usual_ports=ports == "usual",
        )
    except (BinaryError, ValueError) as error:
        fail(str(error))
    except stacks.StackError as error:
        fail(str(error), EXIT_FAILED)
    _show(made, as_json)


@stack.command(epilog=example("caboose stack status --json | jq -r '.parts[].url'"))
@DIRECTORY
@json_option
def status(directory: Path, as_json: bool) -> None:
    """Show the processes, their state and their addresses.

    Exit codes: 0 all parts are ready, 1 one is not, 2 no stack was started there.
    """
    known = _load(directory)
    _show(known, as_json)
    sys.exit(EXIT_OK if all(part.is_ready for part in known.parts) else EXIT_FAILED)


@stack.command(epilog=example("caboose stack down"))
@DIRECTORY
@json_option
def down(directory: Path, as_json: bool) -> None:
    """End the processes. Their data stays in --dir.

    Exit codes: 0 ended, 2 no stack was started there.
    """
    try:
        ended = stacks.down(directory.resolve())
    except stacks.StackError as error:
        fail(str(error))
    if as_json:
        print_json({"ended": ended})
    else:
        echo(f"ended: {', '.join(ended) or 'nothing was running'}")


def _daemon_to_scrape(given: str | None) -> str | None:
    """The daemon that was named, or that answers at the usual address; None if the stack needs one of its own."""
    address = daemon_address(given)
    is_named = given or os.environ.get("CABOOSE_HTTP")
    return address if is_named or Client(address).is_ok("/healthz") else None


def _load(directory: Path) -> stacks.Stack:
    try:
        known = stacks.load(directory.resolve())
    except stacks.StackError as error:
        fail(str(error))
    if known is None:
        fail(f"no stack was started in {directory}; `caboose stack up` starts one")
    return known


def _show(made: stacks.Stack, as_json: bool) -> None:
    rows = [
        (p.name, "ready" if p.is_ready else "running" if p.is_running else "gone", p.url, p.log) for p in made.parts
    ]
    if as_json:
        parts = [{"name": name, "state": state, "url": url, "log": log} for name, state, url, log in rows]
        print_json({"daemon": made.daemon_url, "endpoint": made.endpoint, "parts": parts})
        return
    table = Table(box=None, header_style="dim")
    for name in ("part", "state", "url", "log"):
        table.add_column(name, no_wrap=name != "log")
    for row in rows:
        table.add_row(*row)
    console = SafeConsole()
    console.print(table)
    if made.endpoint:
        usual = made.endpoint == DEFAULT_ENDPOINT
        where = f"{made.endpoint}, their default" if usual else f"CABOOSE_ENDPOINT={made.endpoint}"
        console.print(f"agents report to  {where}", highlight=False)
