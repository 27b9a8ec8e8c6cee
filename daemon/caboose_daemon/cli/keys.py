"""`caboose keys`."""

from datetime import UTC, datetime
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
    _print_variables(server_public, agent_secret)


@keys.command(epilog=example("caboose keys authorize /etc/caboose/keys alice > alice.env"))
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("name")
@json_option
def authorize(directory: Path, name: str, as_json: bool) -> None:
    """Make a key pair for one job or user.

    A running daemon accepts it within a second. The secret key is printed and not kept.

    Exit codes: 0 made, 2 the name is authorised already or invalid, or the directory cannot be written.
    """
    try:
        server_public, agent_secret = key_files.authorize(directory, name)
    except (key_files.KeysError, OSError) as error:
        fail(str(error))
    if as_json:
        print_json({"name": name, "server_key": server_public, "agent_key": agent_secret})
        return
    echo(f"{name} may report. Set these where its jobs run (the second is a secret):\n", err=True)
    _print_variables(server_public, agent_secret)


@keys.command(epilog=example("caboose keys revoke /etc/caboose/keys alice"))
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("name")
@json_option
def revoke(directory: Path, name: str, as_json: bool) -> None:
    """Take a key away.

    A running daemon refuses it within a second and closes its connections. The runs go on, unwatched.

    Exit codes: 0 revoked, 2 there is no such name, or the directory cannot be written.
    """
    try:
        key_files.revoke(directory, name)
    except (key_files.KeysError, OSError) as error:
        fail(str(error))
    if as_json:
        print_json({"name": name, "revoked": True})
        return
    echo(f"{name} is revoked")


@keys.command("list", epilog=example("caboose keys list /etc/caboose/keys"))
@click.argument("directory", type=click.Path(path_type=Path))
@json_option
def list_keys(directory: Path, as_json: bool) -> None:
    """List the names that may report.

    Exit codes: 0 listed, 2 the directory holds no keys.
    """
    try:
        key_files.load(directory)
        found = key_files.authorised(directory / "agents")
    except (key_files.KeysError, OSError) as error:
        fail(str(error))
    if as_json:
        print_json({"keys": [{"name": key.name, "public_key": key.public, "since": key.since} for key in found]})
        return
    for key in found:
        made = datetime.fromtimestamp(key.since, tz=UTC)
        echo(f"{key.name:<24}  {key.public}  since {made:%Y-%m-%d %H:%M} UTC")


def _print_variables(server_public: str, agent_secret: str) -> None:
    echo(f"export CABOOSE_SERVER_KEY='{server_public}'")
    echo(f"export CABOOSE_AGENT_KEY='{agent_secret}'")
