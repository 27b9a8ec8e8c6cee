"""`caboose` alone: what the daemon watches, or how to start one."""

import click

from caboose_daemon.cli.console import echo
from caboose_daemon.cli.jobs import print_jobs
from caboose_daemon.cli.options import daemon_address, make_console
from caboose_daemon.offline.runs.source import DaemonSource
from caboose_daemon.out.api.client import Client, ClientError

NO_DAEMON = """\
No daemon answers at {url}. Start one, and leave it running:

    caboose daemon              # pages, alerts and commands need it; jobs report to it
    caboose stack up            # the same with Prometheus and Alertmanager beside it

If it runs elsewhere: export CABOOSE_HTTP=HOST:PORT. To see what Caboose does: caboose demo"""


def overview(context: click.Context) -> None:
    """The help, and below it the jobs of the daemon, or how to start one."""
    echo(context.get_help())
    echo()
    client = Client(daemon_address(None))
    try:
        client.get("/healthz")
    except ClientError:
        echo(NO_DAEMON.format(url=client.url))
        return
    print_jobs(DaemonSource(client), make_console())
