"""`caboose config`."""

from pathlib import Path
from typing import Any

import click

from caboose_daemon.cli.console import echo
from caboose_daemon.cli.daemon import daemon as daemon_command
from caboose_daemon.cli.daemon import overridden
from caboose_daemon.cli.options import (
    EXIT_FAILED,
    config_option,
    configured_file,
    default_file,
    example,
    fail,
    json_option,
    print_json,
)
from caboose_daemon.config import SAFE_INCIDENT_SECONDS, Config, ConfigError, load
from caboose_daemon.ops.config_reference import Key, as_toml, reference, values

FILES = {
    ("daemon", "keys"): "directory",
    ("daemon", "token_file"): "file",
    ("daemon", "read_token_file"): "file",
    ("daemon", "tls_cert"): "file",
    ("daemon", "tls_key"): "file",
    ("grafana", "token_file"): "file",
    ("otlp", "headers_file"): "file",
    ("otlp", "certificate_file"): "file",
    ("rollback", "secret_file"): "file",
    ("store", "password_file"): "file",
}
"""Keys that name what must be there."""
MADE = (("daemon", "token_file"),)
"""Of these, those that the daemon makes if they are missing."""


@click.group(epilog=example("caboose config show --changed", "caboose config check /etc/caboose/caboose.toml"))
def config() -> None:
    """Show, check and explain the configuration of a daemon."""


@config.command(epilog=example("caboose config show", "caboose config show --changed --config other.toml"))
@config_option
@click.option("--changed", is_flag=True, help="Only values that are not the default.")
@json_option
def show(config_file: Path | None, changed: bool, as_json: bool) -> None:
    """Show the configuration that `caboose daemon` would start with here, and where each value is from.

    That is the file, and the variables CABOOSE_LISTEN and others, which override it. Thresholds of a running daemon,
    also posted ones, are shown by `caboose rules`.

    Exit codes: 0 shown, 2 the configuration is invalid.
    """
    path = config_file or default_file()
    loaded, set_by_variables = _effective(path)
    base = values(load(path))
    defaults = values(Config())

    def origin(key: Key) -> str:
        if key in set_by_variables:
            return "variable"
        return "default" if base[key] == defaults[key] else f"file {path}"

    if as_json:
        rows = [
            {"section": key[0], "key": key[1], "value": value, "from": origin(key).partition(" ")[0]}
            for key, value in values(loaded).items()
            if not (changed and origin(key) == "default")
        ]
        print_json({"file": loaded.file or None, "values": rows})
    else:
        echo(as_toml(loaded, origin, only_changed=changed), nl=False)


@config.command(epilog=example("caboose config check", "caboose config check /etc/caboose/caboose.toml"))
@click.argument("file", type=click.Path(path_type=Path), required=False)
def check(file: Path | None) -> None:
    """Check a configuration: its keys, its values, and that the files it names are there.

    FILE is a caboose.toml; without it, that of CABOOSE_CONFIG, or caboose.toml in this directory. The daemon checks the
    same when it starts; here nothing is started.

    Exit codes: 0 valid, 1 not valid, 2 no such file.
    """
    path = file or configured_file()
    if path is None:
        fail("no FILE, no CABOOSE_CONFIG, and no caboose.toml in this directory: there is nothing to check")
    if not path.is_file():
        fail(f"{path}: no such file")
    try:
        loaded = load(path)
    except ConfigError as error:
        fail(str(error), EXIT_FAILED)
    problems = list(_missing_files(loaded))
    for problem in problems:
        echo(f"caboose: {path}: {problem}", err=True)
    if problems:
        raise SystemExit(EXIT_FAILED)
    if loaded.metrics.incident_seconds < SAFE_INCIDENT_SECONDS:
        echo(
            f"caboose: {path}: metrics.incident_seconds is below {SAFE_INCIDENT_SECONDS:g}: short incidents may be "
            "over before a scrape",
            err=True,
        )
    now, defaults = values(loaded), values(Config())
    changed = sum(now[key] != defaults[key] for key in defaults)
    echo(f"{path}: valid; {changed} of {len(defaults)} values are not the default")


@config.command("reference", epilog=example("caboose config reference > caboose.toml"))
def show_reference() -> None:
    """Print every key with its default and its meaning, as a caboose.toml that changes nothing.

    Exit codes: 0 printed.
    """
    echo(reference(), nl=False)


def _effective(path: Path | None) -> tuple[Config, set[Key]]:
    """The configuration with the variables of `caboose daemon`, and the keys that those set."""
    given: dict[str, Any] = daemon_command.make_context("daemon", []).params
    overrides, acting, keeping = overridden(given)
    try:
        loaded = load(path, overrides, acting, keeping)
    except ConfigError as error:
        fail(str(error))
    keys = {("daemon", name) for name in overrides} | {("rollback", name) for name in acting}
    return loaded, keys | {("journal", name) for name in keeping}


def _missing_files(loaded: Config) -> list[str]:
    problems = []
    for (section, name), kind in FILES.items():
        given = getattr(getattr(loaded, section), name)
        path = Path(given).expanduser()
        is_there = path.is_dir() if kind == "directory" else path.is_file()
        if given and not is_there and (section, name) not in MADE:
            problems.append(f"{section}.{name} = {given!r}: no such {kind}")
    return problems
