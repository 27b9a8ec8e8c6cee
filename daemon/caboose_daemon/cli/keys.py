"""`caboose keys`."""

from pathlib import Path

import click

from caboose_daemon.app import keys as key_files
from caboose_daemon.cli.exits import fail


@click.group()
def keys() -> None:
    """Keys for reports that cross the network."""


@keys.command()
@click.argument("directory", type=click.Path(path_type=Path), default=Path("caboose-keys"))
def new(directory: Path) -> None:
    """Make a key pair for the daemon and one for its agents.

    \b
    Example:
        caboose keys new /etc/caboose/keys
        caboose daemon --listen tcp://0.0.0.0:5757 --keys /etc/caboose/keys
    """
    try:
        server_public, agent_secret = key_files.make(directory)
    except (key_files.KeysError, OSError) as error:
        fail(str(error))
    click.echo(f"Keys are in {directory}. Start the daemon with them:\n", err=True)
    click.echo(f"    caboose daemon --listen tcp://0.0.0.0:5757 --keys {directory}\n", err=True)
    click.echo("and set these where your jobs run (the second is a secret):\n", err=True)
    click.echo(f"export CABOOSE_SERVER_KEY='{server_public}'")
    click.echo(f"export CABOOSE_AGENT_KEY='{agent_secret}'")
