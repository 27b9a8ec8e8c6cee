"""`caboose rules`."""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from caboose_daemon.cli.console import SafeConsole, echo
from caboose_daemon.cli.options import (
    configured_file,
    connect,
    daemon_option,
    example,
    fail,
    json_option,
    load_config,
    print_json,
)
from caboose_daemon.cli.rule_pages import listed, one_page, plain_list
from caboose_daemon.jobs.thresholds import origins
from caboose_daemon.out.api import rule_shapes
from caboose_daemon.out.api.client import ClientError
from caboose_daemon.rules import RULES
from caboose_daemon.rules.parts.describe import describe

F = TypeVar("F", bound=Callable[..., Any])


def shared_options(command: F) -> F:
    """The options of both commands."""
    for option in (
        json_option,
        click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path),
            help="Show the thresholds of this file; do not ask a daemon.",
        ),
        daemon_option,
    ):
        command = option(command)
    return command


@click.group(
    invoke_without_command=True,
    epilog=example(
        "caboose rules",
        "caboose rules --config other.toml",
        "caboose rules show loss_spike",
        "caboose rules --json | jq '.rules[] | select(.enabled) | .rule'",
    ),
)
@shared_options
@click.pass_context
def rules(context: click.Context, address: str | None, config_file: Path | None, as_json: bool) -> None:
    """List the rules: enabled, thresholds, inputs, runbook.

    With a daemon running, also the state of each rule in each job: quiet, open, or abstaining because an input is
    missing. Without one, the thresholds of caboose.toml (or of CABOOSE_CONFIG), or the defaults. A star marks a value
    that is not the default.

    Exit codes: 0 shown, 2 cannot be shown as asked (no such file, no daemon answers at --daemon).
    """
    if context.invoked_subcommand is not None:
        context.obj = (address, config_file, as_json)
        return
    answer = _ask(address, config_file)
    console = SafeConsole()
    if as_json:
        print_json(answer)
    elif console.is_terminal:
        console.print(listed(answer, console.width))
    else:
        echo(plain_list(answer))


@rules.command(epilog=example("caboose rules show loss_spike", "caboose rules show rank_silent --json"))
@click.argument("name")
@shared_options
@click.pass_obj
def show(
    given: tuple[str | None, Path | None, bool], name: str, address: str | None, config_file: Path | None, as_json: bool
) -> None:
    """Explain one rule.

    Shows what it detects, how it decides, every threshold with its meaning and value, its inputs, when it is muted or
    starts over, and its runbook.

    Exit codes: 0 shown, 2 no such rule, or cannot be shown as asked.
    """
    about = {rule.name: describe(rule) for rule in RULES}
    if name not in about:
        near = difflib.get_close_matches(name.lower().replace("-", "_"), about, n=1, cutoff=0.4)
        fail(f"no rule {name!r}; " + (f"did you mean {near[0]}?" if near else f"the rules are {', '.join(about)}"))
    answer = _ask(address or given[0], config_file or given[1])
    row = next((row for row in answer["rules"] if row["rule"] == name), None)
    if row is None:
        fail(f"the {answer['source']} has no rule {name}; it runs another version")
    if as_json or given[2]:
        texts = {"sees": about[name].sees, "sections": [list(section) for section in about[name].sections]}
        print_json({"source": answer["source"], **row, **texts})
        return
    console = SafeConsole()
    console.print(one_page(about[name], row, answer["source"]), width=min(console.width, 100))


def _ask(address: str | None, config_file: Path | None) -> dict[str, Any]:
    """The rules as a running daemon has them, or as one started here would."""
    if config_file is not None:
        if address is not None:
            fail("--config and --daemon: give one of them")
        return _configured(config_file, f"file {config_file}")
    client = connect(address)
    try:
        answer = client.get("/api/v1/rules")
        return {"source": f"daemon at {client.url}", "file": answer["file"], "rules": answer["rules"]}
    except (ClientError, KeyError, TypeError) as error:
        if address is not None:
            fail(str(error) if isinstance(error, ClientError) else f"{client.url} answers, but not as a Caboose daemon")
    path = configured_file()
    where = f"file {path}" if path is not None else "defaults"
    return _configured(path, f"{where}; no daemon answers at {client.url}")


def _configured(path: Path | None, source: str) -> dict[str, Any]:
    config = load_config(path)
    rows = [
        rule_shapes.rule(describe(rule), config.rules[rule.name], _origins(config.rules, config.rule_tables, rule.name))
        for rule in RULES
    ]
    return {"source": source, "file": config.file or None, "rules": rows}


def _origins(configs: Any, tables: Any, name: str) -> dict[str, str]:
    return dict(origins(configs[name], tables.get(name, {})))
