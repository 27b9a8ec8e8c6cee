"""`caboose doctor`."""

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from caboose_daemon.cli.options import (
    EXIT_FAILED,
    EXIT_OK,
    configured_file,
    connect,
    daemon_option,
    example,
    json_option,
    make_console,
    print_json,
    stack_daemon,
    token_file_of,
    token_option,
)
from caboose_daemon.config import Config
from caboose_daemon.format import plural
from caboose_daemon.ops.doctor.check import DoctorCheck
from caboose_daemon.ops.doctor.daemon import OtherVersion, ask_about, check_daemon, check_token
from caboose_daemon.ops.doctor.machine import check_config, check_data_dir, check_ports
from caboose_daemon.ops.doctor.reports import check_keys, check_reports
from caboose_daemon.out.api.client import ClientError
from caboose_wire.endpoints import DEFAULT_ENDPOINT

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "cross": ("✗", "bold red"), "unknown": ("?", "dim")}
OF_THE_DAEMON = "versions, clock, messages, agents, prometheus, rollback"


@click.command(
    epilog=example(
        "caboose doctor",
        "caboose doctor --daemon http://monitor:9757 --endpoint tcp://monitor:5757",
        "caboose doctor --json | jq -r '.checks[] | select(.state == \"cross\") | .fix'",
    )
)
@click.option(
    "--endpoint", envvar="CABOOSE_ENDPOINT", help="Address that agents report to.  [default: tcp://127.0.0.1:5757]"
)
@token_option
@daemon_option
@json_option
def doctor(endpoint: str | None, token_file: str | None, address: str | None, as_json: bool) -> None:
    """Check everything between a run and its users, and print the fix for each problem.

    Checks the configuration, keys, ports, daemon, report socket, token, versions, clocks, journal, scrapes, agents and
    rollback. It sends one message to the report socket, and one write that changes nothing.

    Exit codes: 0 no problem (warnings do not count), 1 at least one, 2 a wrong --daemon.
    """
    checks = list(_checks(endpoint, token_file, address))
    num_crosses = sum(check.state == "cross" for check in checks)
    if as_json:
        print_json({"num_crosses": num_crosses, "checks": [asdict(check) for check in checks]})
    else:
        make_console().print(_page(checks))
    sys.exit(EXIT_FAILED if num_crosses else EXIT_OK)


def _checks(endpoint: str | None, token_file: str | None, address: str | None) -> Iterator[DoctorCheck]:
    configured, config = check_config(configured_file())
    yield configured
    keys_check, keys = check_keys(os.environ, config.daemon.keys)
    yield keys_check
    stack = None
    if address is None and not os.environ.get("CABOOSE_HTTP"):
        stack = stack_daemon()
        address = config.daemon.http if stack is None else stack.url
    client = connect(address)
    try:
        about, rtt = ask_about(client)
    except ClientError as error:
        where = "" if address == Config().daemon.http else "; or name another with --daemon or CABOOSE_HTTP"
        is_other = isinstance(error, OtherVersion)
        fix = "restart it with this version" if is_other else f"start one: `caboose daemon`{where}"
        yield DoctorCheck("daemon", "cross", str(error), fix)
        yield check_ports(config)
        yield check_data_dir(config)
        yield DoctorCheck("the rest", "unknown", f"{OF_THE_DAEMON}: not checked, as no daemon answers")
        return
    problems = about["problems"]
    if problems:
        yield DoctorCheck("daemon", "cross", "; ".join(problems), "see its log; restart it if it has stopped receiving")
    else:
        yield DoctorCheck("daemon", "ok", f"{client.url} answers")
    yield check_reports(endpoint or (_endpoint(config) if stack is None else stack.endpoint), keys)
    known = Path(stack.token_file) if stack is not None else token_file_of(config.daemon)
    path = Path(token_file).expanduser() if token_file else known
    token: str | None
    try:
        token, problem = path.read_text(encoding="utf-8").strip(), ""
    except OSError as error:
        token, problem = None, f"{path}: {error.strerror}"
    try:
        yield check_token(client, token, problem)
        yield from check_daemon(client, about, rtt)
    except ClientError as error:
        yield DoctorCheck("daemon", "cross", str(error), "it stopped during the check: see its log")


def _endpoint(config: Config) -> str:
    """Where agents of this machine report, without CABOOSE_ENDPOINT."""
    listen = config.daemon.listen
    return listen.replace("0.0.0.0", "127.0.0.1") if listen else DEFAULT_ENDPOINT  # noqa: S104 - replaced, not bound


def _page(checks: list[DoctorCheck]) -> Group:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for check in checks:
        mark, style = MARKS[check.state]
        text = Text(check.text, "dim" if check.state in ("ok", "unknown") else "")
        if check.fix:
            text.append(f"\n→ {check.fix}", "cyan")
        table.add_row(Text(mark, style), check.name, text)
    crosses, warnings = (sum(check.state == state for check in checks) for state in ("cross", "warning"))
    if crosses:
        end = Text(f"{plural(crosses, 'problem')} to fix", "bold red")
    elif warnings:
        end = Text(f"no problem; {plural(warnings, 'warning')}", "yellow")
    else:
        end = Text("no problem found", "bold green")
    return Group(Text(), Padding(table, (0, 0, 0, 2)), Text(), Padding(end, (0, 0, 0, 2)), Text())
