"""`caboose relay`."""

import json
import os
import signal
from pathlib import Path

import click

from caboose_daemon.app.report_connections import raise_descriptor_limit
from caboose_daemon.cli.console import echo, log_to_stderr
from caboose_daemon.cli.options import example, fail
from caboose_daemon.relay.relay import Relay
from caboose_daemon.relay.settings import RelayError, resolve
from caboose_daemon.version import __version__
from caboose_wire.endpoints import DEFAULT_ENDPOINT

MIB = 1024 * 1024


@click.command(
    epilog=example(
        "caboose relay --listen ipc:///run/caboose/relay.sock --upstream tcp://caboose:5757",
        "torchrun --nproc-per-node 8 train.py        # with CABOOSE_ENDPOINT=ipc:///run/caboose/relay.sock",
    )
)
@click.option(
    "--listen",
    envvar="CABOOSE_RELAY_LISTEN",
    multiple=True,
    required=True,
    help="Address that ranks and other relays report to: ipc:///path or tcp://host:port; may be given several times.",
)
@click.option(
    "--upstream",
    envvar="CABOOSE_UPSTREAM",
    default=DEFAULT_ENDPOINT,
    show_default=True,
    help="Address of the daemon, or of the next relay.",
)
@click.option(
    "--keys", envvar="CABOOSE_KEYS", default="", help="Directory made by `caboose keys new`: only its keys may report."
)
@click.option(
    "--name", envvar="CABOOSE_RELAY_NAME", default="", help="Name of this relay.  [default: that of the machine]"
)
@click.option(
    "--hold-ms",
    type=click.IntRange(0, 10_000),
    default=50,
    show_default=True,
    help="How long a report may wait for those of the other ranks.",
)
@click.option(
    "--buffer-mb",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Memory for messages while the upstream address does not answer.",
)
@click.option("--insecure", is_flag=True, help="Allow other machines to connect, and to be connected to, without keys.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    help="Write the actual addresses to this file, as JSON, when the relay is ready.",
)
def relay(
    listen: tuple[str, ...],
    upstream: str,
    keys: str,
    name: str,
    hold_ms: int,
    buffer_mb: int,
    insecure: bool,
    ready_file: Path | None,
) -> None:
    """Collect the messages of the ranks of a node, and send them on together.

    Between ranks and a daemon, or in trees of relays: findings are the same as without. Set CABOOSE_ENDPOINT of the
    ranks to --listen. Keys: --keys for those who report to it, CABOOSE_SERVER_KEY and CABOOSE_AGENT_KEY for the
    upstream address. Ctrl-C or SIGTERM sends what waits and ends the relay.

    Exit codes: 0 ended as asked, 1 failed, 2 cannot start as configured.
    """
    log_to_stderr()
    raise_descriptor_limit()
    try:
        settings = resolve(
            os.environ,
            listen=listen,
            upstream=upstream,
            keys=keys,
            name=name,
            hold_seconds=hold_ms / 1000,
            buffer_bytes=buffer_mb * MIB,
            is_insecure=insecure,
        )
        running = Relay(settings)
        try:
            endpoints = running.bind()
        except BaseException:
            running.close()
            raise
    except RelayError as error:
        fail(str(error))
    if insecure:
        click.secho("caboose: --insecure: anyone who can reach this port can report for any rank", fg="red", err=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: running.stop())
    _announce(endpoints, upstream, ready_file)
    running.run()


def _announce(endpoints: list[str], upstream: str, ready_file: Path | None) -> None:
    if ready_file is not None:
        aside = ready_file.with_name(ready_file.name + ".incomplete")
        addresses = {"endpoints": endpoints, "pid": os.getpid(), "version": __version__}
        aside.write_text(json.dumps(addresses) + "\n", encoding="utf-8")
        aside.replace(ready_file)
    echo(f"caboose relay {__version__}")
    for endpoint in endpoints:
        echo(f"  reports  {endpoint}")
    echo(f"  to       {upstream}")
