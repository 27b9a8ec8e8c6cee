"""`caboose keys`."""

from pathlib import Path

import click

from caboose_daemon.app import keys as key_files
from caboose_daemon.cli.console import echo
from caboose_daemon.cli.options import example, fail, json_option, print_json


@click.group(epilog=example("caboose keys new /etc/caboose/keys"))
def keys() -> None:
    """Keys for reports that cross the network."""


@keys.command(
    epilog=example(
        "caboose keys new /etc/caboose/keys", "caboose daemon --listen tcp://0.0.0.0:5757 --keys /etc/caboose/keys"
    )
)
@click.argument("directory", type=click.Path(path_type=Path), default=Path("caboose-keys"))
@json_option
def new(directory: Path, as_json: bool) -> None:
    """Make a key pair for the daemon and one for its agents.

    Exit codes: 0 made, 2 the directory cannot be written, or holds keys already.
    """
    try:
        server_public, agent_secret = key_files.make(directory)
    except (key_files.KeysError, OSError) as error:
        fail(str(error))
    if as_json:
        print_json({"directory": str(directory), "server_key": server_public, "agent_key": agent_secret})
        return
    echo(f"Keys are in {directory}. Start the daemon with them:\n", err=True)
    echo(f"    caboose daemon --listen tcp://0.0.0.0:5757 --keys {directory}\n", err=True)
    echo("and set these where your jobs run (the second is a secret):\n", err=True)
    echo(f"export CABOOSE_SERVER_KEY='{server_public}'")
    echo(f"export CABOOSE_AGENT_KEY='{agent_secret}'")
