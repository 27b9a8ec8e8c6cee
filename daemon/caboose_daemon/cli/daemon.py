"""`caboose daemon`."""

import gc
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from caboose_daemon.app.app import Daemon, StartError
from caboose_daemon.cli.console import echo, log_to_stderr
from caboose_daemon.cli.options import config_option, default_file, example, fail
from caboose_daemon.config import Config, ConfigError, load
from caboose_daemon.version import __version__

COLLECT_AFTER = (50_000, 20, 100)
"""Thresholds of the garbage collector, by generation."""


@click.command(
    epilog=example(
        "caboose daemon --data-dir /var/lib/caboose",
        "torchrun --nproc-per-node 2 train.py        # its agents find the daemon on this machine",
    )
)
@click.option(
    "--listen", envvar="CABOOSE_LISTEN", help="Address that agents report to.  [default: tcp://127.0.0.1:5757]"
)
@click.option("--http", envvar="CABOOSE_HTTP", help="Address of page, API and /metrics.  [default: 127.0.0.1:9757]")
@click.option(
    "--external-url",
    envvar="CABOOSE_EXTERNAL_URL",
    help="Address at which people reach the page, for links.  [default: this machine's name and the port of --http]",
)
@click.option("--data-dir", envvar="CABOOSE_DATA_DIR", help="Directory of the journal.  [default: caboose-data]")
@click.option(
    "--keys", envvar="CABOOSE_KEYS", help="Directory made by `caboose keys new`: only agents with its key may report."
)
@click.option("--token-file", envvar="CABOOSE_TOKEN_FILE", help="File with the token for HTTP writes.")
@click.option(
    "--read-token-file",
    envvar="CABOOSE_READ_TOKEN_FILE",
    help="File with the token for reading over HTTP.  [default: reading is open]",
)
@click.option("--tls-cert", envvar="CABOOSE_TLS_CERT", help="File with the certificate chain for HTTPS, PEM.")
@click.option("--tls-key", envvar="CABOOSE_TLS_KEY", help="File with its private key, PEM, without a passphrase.")
@config_option
@click.option(
    "--rollback",
    envvar="CABOOSE_ROLLBACK",
    help="Rollback mode: off, advise or auto; a run may allow less.  [default: advise]",
)
@click.option("--secret-file", envvar="CABOOSE_SECRET_FILE", help="File with the secret that signs commands to ranks.")
@click.option(
    "--linger",
    "linger_seconds",
    envvar="CABOOSE_LINGER",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="On SIGTERM, wait up to this long until all findings are scraped.  [default: 0]",
)
@click.option(
    "--strict-journal", is_flag=True, help="Refuse to start on a damaged journal, instead of keeping it aside."
)
@click.option("--insecure", is_flag=True, help="Allow other machines to connect without keys or token.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    help="Write the actual addresses to this file, as JSON, when the daemon is ready.",
)
def daemon(
    config_file: Path | None,
    ready_file: Path | None,
    insecure: bool,
    strict_journal: bool,
    rollback: str | None,
    secret_file: str | None,
    linger_seconds: float | None,
    **given: str | None,
) -> None:
    """Run the daemon that jobs report to.

    A flag overrides its environment variable (CABOOSE_LISTEN, ...), which overrides caboose.toml. Ctrl-C or SIGTERM
    ends the daemon; with --linger, SIGTERM waits until all findings are scraped, and a second SIGTERM ends it
    at once. SIGHUP reloads the authorised keys and the rules' thresholds.

    Exit codes: 0 ended as asked, 1 failed, 2 cannot start as configured.
    """
    log_to_stderr()
    overrides, acting, keeping = overridden(
        {
            **given,
            "insecure": insecure,
            "strict_journal": strict_journal,
            "rollback": rollback,
            "secret_file": secret_file,
            "linger_seconds": linger_seconds,
        }
    )
    config_file = config_file or default_file()

    def reread() -> Config:
        return load(config_file or default_file(), overrides, acting, keeping)

    try:
        config = load(config_file, overrides, acting, keeping)
        running = Daemon(config, reread)
        try:
            running.start()
        except BaseException:
            running.close()
            raise
    except (ConfigError, StartError) as error:
        fail(str(error))
    if config.daemon.insecure:
        click.secho(
            "caboose: --insecure: anyone who can reach these ports can report, read, and impersonate a rank",
            fg="red",
            err=True,
        )
    _collect_rarely()
    running.serve(on_ready=lambda: _announce(running, ready_file))


def _collect_rarely() -> None:
    """The garbage collector skips what is there now, and looks at the rest less often.

    Reports have no reference cycles. With the usual thresholds the collector took a fifth of the CPU time of ingest.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def overridden(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What flags and variables set in `[daemon]`, `[rollback]` and `[journal]`."""
    acting = {name: given[flag] for name, flag in (("mode", "rollback"), ("secret_file", "secret_file")) if given[flag]}
    keeping = {"strict": True} if given["strict_journal"] else {}
    others = ("rollback", "secret_file", "strict_journal", "linger_seconds", "config_file", "ready_file")
    overrides = {name: value for name, value in given.items() if value and name not in others}
    if given["linger_seconds"] is not None:
        overrides["linger_seconds"] = given["linger_seconds"]
    return overrides, acting, keeping


def _announce(running: Daemon, ready_file: Path | None) -> None:
    if ready_file is not None:
        addresses = {"endpoint": running.endpoint, "url": running.url, "pid": os.getpid(), "version": __version__}
        aside = ready_file.with_name(ready_file.name + ".incomplete")
        aside.write_text(json.dumps(addresses) + "\n", encoding="utf-8")
        aside.replace(ready_file)
    echo(f"caboose daemon {__version__}")
    echo(f"  reports  {running.endpoint}")
    echo(f"  page     {running.url}")
    if running.state.url != running.url:
        echo(f"  links    {running.state.url}")
