"""`caboose grafana`."""

import os
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from caboose_daemon import assets
from caboose_daemon.cli.console import echo
from caboose_daemon.cli.options import (
    EXIT_FAILED,
    config_option,
    connect,
    default_file,
    example,
    fail,
    json_option,
    print_json,
)
from caboose_daemon.config import ConfigError, load
from caboose_daemon.out.api.client import ClientError, job_path

DONE = {"create": "created", "update": "updated", "keep": "unchanged"}
PLANNED = {"create": "would be created", "update": "would be updated", "keep": "unchanged"}


@click.group(epilog=example("caboose grafana push --url http://grafana:3000 --token-file token"))
def grafana() -> None:
    """Dashboards and incidents in your Grafana."""


@grafana.command(
    epilog=example(
        "caboose grafana push --url http://grafana:3000 --token-file token --prometheus http://prometheus:9090",
        "caboose grafana push --dry-run",
    )
)
@click.option("--url", envvar="CABOOSE_GRAFANA_URL", help="Grafana's address, http://host:port/path.")
@click.option(
    "--token-file",
    envvar="CABOOSE_GRAFANA_TOKEN_FILE",
    help="File with a service account's token; or set CABOOSE_GRAFANA_TOKEN to the token.",
)
@click.option(
    "--prometheus",
    metavar="URL",
    help="Prometheus' address, as Grafana reaches it, for a new data source.  [default: an existing one]",
)
@click.option(
    "--dashboards",
    "directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Push the dashboards of this directory instead of Caboose's.",
)
@click.option("--folder", default="Caboose", show_default=True, help="The dashboards' folder.")
@click.option(
    "--daemon",
    "address",
    metavar="URL",
    help="The daemon whose incidents become annotations.  [default: CABOOSE_HTTP or 127.0.0.1:9757, if it answers]",
)
@click.option("--no-incidents", is_flag=True, help="Push no incident annotations.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@json_option
@config_option
def push(
    url: str | None,
    token_file: str | None,
    prometheus: str | None,
    directory: Path | None,
    folder: str,
    address: str | None,
    no_incidents: bool,
    dry_run: bool,
    as_json: bool,
    config_file: Path | None,
) -> None:
    """Create or update folder, data source, dashboards and incident annotations.

    Objects that are up to date are not written, so the command can be repeated. The token belongs to a service account
    with the role Editor (Admin, to create the data source). It is never given on the command line.

    Exit codes: 0 Grafana is up to date, 1 Grafana or the daemon failed or refused, 2 cannot be done as asked.
    """
    try:  # only this command needs them, and they take a while to import
        from caboose_daemon.ops.grafana_push import Wanted, plan
        from caboose_daemon.out.grafana.connection import GrafanaConnection, check_url, read_token
        from caboose_daemon.out.grafana.library import GrafanaError
    except ModuleNotFoundError as error:
        fail(f"this needs {error.name}: pip install 'caboose[daemon]'")

    try:
        config = load(config_file or default_file()).grafana
        target = url or config.url
        if not target:
            fail("where is Grafana? Give --url URL, or set CABOOSE_GRAFANA_URL, or [grafana] url in caboose.toml")
        token = token_file or ("" if os.environ.get("CABOOSE_GRAFANA_TOKEN") else config.token_file)
        connection = GrafanaConnection(target, read_token(token))
        prometheus = check_url(prometheus) if prometheus else ""
    except (ConfigError, GrafanaError) as error:
        fail(str(error))
    dashboards = sorted(directory.glob("*.json")) if directory is not None else assets.dashboards()
    if not dashboards:
        fail(f"no dashboards in {directory or assets.folder('grafana')}")
    done: list[dict[str, str]] = []
    try:
        version = connection.check_version()
        incidents = {} if no_incidents else _incidents(address)
        changes = plan(connection, Wanted(folder, prometheus, dashboards, incidents))
        for change in changes:
            if not dry_run:
                change.apply()
            done.append({"kind": change.kind, "name": change.name, "action": change.action})
    except (GrafanaError, ClientError, ValueError) as error:
        _show(done, as_json=as_json, dry_run=dry_run, url=connection.url, error=str(error))
        fail(str(error), EXIT_FAILED)
    finally:
        connection.close()
    _show(done, as_json=as_json, dry_run=dry_run, url=connection.url, version=version)


def _incidents(address: str | None) -> dict[str, list[dict[str, Any]]]:
    """By job; none, with a warning, if no daemon answers and --daemon was not given."""
    client = connect(address)
    try:
        jobs = [row["job"] for row in client.get("/api/v1/jobs")["jobs"]]
        return {job: client.get(job_path(job, "/incidents"))["incidents"] for job in jobs}
    except ClientError as error:
        if address:
            raise
        echo(f"caboose: {error}; no incidents pushed", err=True)
        return {}


def _show(
    done: list[dict[str, str]], *, as_json: bool, dry_run: bool, url: str, version: str = "", error: str = ""
) -> None:
    if as_json:
        print_json({"url": url, "version": version, "dry_run": dry_run, "changes": done, "error": error})
        return
    words = PLANNED if dry_run else DONE
    for item in done:
        if item["action"] != "keep":
            echo(f"{item['kind']:12} {item['name']:40} {words[item['action']]}")
    if error:
        return
    counts = Counter(item["action"] for item in done)
    num_changed = counts["create"] + counts["update"]
    host = urlsplit(url).netloc
    if not num_changed:
        echo(f"Nothing to change: all {len(done)} objects in {host} are up to date.")
    else:
        echo(
            f"{'Would change' if dry_run else 'Changed'} {num_changed} of {len(done)} objects in {host}; "
            f"{counts['keep']} are up to date."
        )
