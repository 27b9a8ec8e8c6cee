"""`caboose mcp`."""

import time
from pathlib import Path
from typing import Any

import click

from caboose_daemon.app.serving import ServeError, tls_arguments
from caboose_daemon.cli.console import echo
from caboose_daemon.cli.options import (
    connect,
    daemon_option,
    example,
    fail,
    read_token,
    token_option,
    user_name,
)
from caboose_daemon.out.api.client import Client
from caboose_daemon.out.web.security import read_token as read_access_token
from caboose_wire.endpoints import is_loopback, split_http

EXTRA = "pip install 'caboose[mcp]'"


@click.command(
    name="mcp",
    epilog=example(
        "caboose mcp                                  # started by an assistant, over standard input and output",
        "caboose mcp --http 127.0.0.1:9758            # streamable HTTP at http://127.0.0.1:9758/mcp",
        "caboose mcp --allow-actions --daemon http://127.0.0.1:9757",
    ),
)
@click.option("--http", metavar="HOST:PORT", help="Serve streamable HTTP here instead of standard input and output.")
@click.option(
    "--allow-actions",
    is_flag=True,
    help="Offer the tools that act: note, acknowledge, apply_lr_scale, checkpoint, rollback.",
)
@click.option(
    "--access-token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File with the token that assistants need over HTTP.",
)
@click.option("--allowed-host", "allowed_hosts", metavar="NAME", multiple=True, help="Further name in HTTP requests.")
@click.option("--tls-cert", default="", metavar="FILE", help="File with the certificate chain for HTTPS, PEM.")
@click.option("--tls-key", default="", metavar="FILE", help="File with its private key, PEM, without a passphrase.")
@token_option
@daemon_option
def mcp(
    http: str | None,
    allow_actions: bool,
    access_token_file: Path | None,
    allowed_hosts: tuple[str, ...],
    tls_cert: str,
    tls_key: str,
    token_file: str | None,
    address: str | None,
) -> None:
    """Let an assistant ask a daemon about runs, over the Model Context Protocol.

    It reads jobs, curves, layers, ranks, incidents, diagnoses, past incidents, rules and runbooks. With
    --allow-actions it can also act, with the daemon's token, each time after a dry run. Over HTTP an access token is
    required with --allow-actions, on an address that other machines reach, and if the daemon itself asks for a token.

    Exit codes: 0 ended as asked, 2 cannot start as asked.
    """
    client = connect(address)
    token = read_token(token_file, client.url) if allow_actions else None
    if http is None:
        if access_token_file or allowed_hosts or tls_cert or tls_key:
            fail("--access-token-file, --allowed-host and --tls-... are for --http")
        server, transport = _server(client, token)
        transport.serve_stdio(server)
        return
    host, port = _address(http)
    if bool(tls_cert) != bool(tls_key):
        fail("--tls-cert and --tls-key: give both")
    access_token = _access_token(access_token_file)
    if not access_token:
        _check_open(host, client, allow_actions=allow_actions)
    try:
        tls = tls_arguments(tls_cert, tls_key)
        server, transport = _server(client, token)
        transport.serve_http(
            server,
            host,
            port,
            token=access_token,
            allowed_hosts=allowed_hosts,
            tls=tls,
            on_ready=lambda url: echo(f"caboose mcp: {url} (asks the daemon at {client.url})", err=True),
        )
    except ServeError as error:
        fail(str(error))


def _address(given: str) -> tuple[str, int]:
    try:
        return split_http(given)
    except ValueError as error:
        fail(f"--http {given}: {error}")


def _server(client: Client, token: str | None) -> tuple[Any, Any]:
    """The server, and the module that serves it; both need the SDK."""
    try:
        from caboose_daemon.assistant import transport
        from caboose_daemon.assistant.actions import Actions
        from caboose_daemon.assistant.server import make_server
        from caboose_daemon.assistant.tools import Acting, Reading
    except ImportError as error:
        if (error.name or "").partition(".")[0].startswith("caboose"):
            raise
        fail(f"{error.name} is missing: {EXTRA}")
    tools = Reading(client).tools()
    if token is not None:
        tools += Acting(Actions(client, token, user_name(), time.monotonic)).tools()
    return make_server(tools), transport


def _access_token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return read_access_token(path.expanduser())
    except (OSError, ValueError) as error:
        fail(f"--access-token-file {getattr(error, 'strerror', None) or error}")


def _check_open(host: str, client: Client, *, allow_actions: bool) -> None:
    """Ends the command where a server without a token would give away too much."""
    why = ""
    if not is_loopback(host):
        why = f"{host} is reachable from other machines"
    elif allow_actions:
        why = "with --allow-actions everyone on this machine could act with your token"
    elif client.has_token:
        why = "the daemon asks for a token to read"
    if why:
        fail(f"{why}: --access-token-file is required with --http")
