"""What the commands that ask a run for something share: the daemon, the token, and waiting for the outcome."""

import getpass
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from caboose_daemon.cli.config_file import configured_file
from caboose_daemon.cli.exits import fail
from caboose_daemon.config import ConfigError, DaemonConfig, load
from caboose_daemon.out.api.client import Client, ClientError, job_path
from caboose_wire.endpoints import DEFAULT_HTTP

POLL_SECONDS = 0.2
ANSWER_SECONDS = 3.0
"""After the outcome is known, for what other ranks found."""
F = TypeVar("F", bound=Callable[..., None])


@dataclass(frozen=True)
class Asked:
    """A request: of which job, at which endpoint, and what."""

    job: str
    endpoint: str
    body: dict[str, Any]


def options(command: F) -> F:
    """The options that all of them have."""
    for option in (
        click.option("--token-file", envvar="CABOOSE_TOKEN_FILE", help="The daemon's token.  [default: in its data]"),
        click.option(
            "--daemon", "address", metavar="URL", help="The daemon to ask.  [default: CABOOSE_HTTP or 127.0.0.1:9757]"
        ),
        click.option(
            "--wait", metavar="SECONDS", type=float, default=120.0, show_default=True, help="For the outcome."
        ),
        click.option("--json", "as_json", is_flag=True, help="The decision as one JSON object, for programs."),
        click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing."),
    ):
        command = option(command)
    return command


def connect(address: str | None) -> Client:
    """The daemon to ask; ends the command where the address cannot be one."""
    try:
        return Client(address or os.environ.get("CABOOSE_HTTP") or DEFAULT_HTTP)
    except ValueError as error:
        fail(f"--daemon {error}")


def decisions(client: Client, job: str) -> dict[str, Any]:
    """How rollback stands in a job; ends the command where nobody knows."""
    try:
        answer: dict[str, Any] = client.get(job_path(job, "/decisions"))
    except ClientError as error:
        fail(str(error))
    return answer


def sender(client: Client, token_file: str | None) -> Callable[..., dict[str, Any]]:
    """What asks the daemon, with its token: the decision comes back at once, sent or refused."""
    token = read_token(token_file)

    def send(asked: Asked, *, dry_run: bool) -> dict[str, Any]:
        body = {**asked.body, "dry_run": dry_run, "by": who()}
        try:
            status, answer = client.post(job_path(asked.job, f"/{asked.endpoint}"), body, token)
        except ClientError as error:
            fail(str(error))
        if "explanation" not in answer:
            fail(str(answer.get("error", f"the daemon answered {status}")))
        decision: dict[str, Any] = answer
        return decision

    return send


def follow(client: Client, job: str, decision: dict[str, Any], wait: float, *, is_quiet: bool) -> dict[str, Any]:
    """The decision when its outcome is known, or as it stands when the time is over; a terminal shows how far it is."""
    deadline = time.monotonic() + wait
    is_told = not is_quiet and sys.stderr.isatty()
    known = math.inf  # when the outcome was, for which one rank's word is enough
    while (decision["is_open"] or _is_awaited(decision)) and time.monotonic() < min(deadline, known + ANSWER_SECONDS):
        time.sleep(POLL_SECONDS)
        rows = decisions(client, job)["decisions"]
        decision = next((row for row in rows if row["number"] == decision["number"]), decision)
        known = min(known, math.inf if decision["is_open"] else time.monotonic())
        if is_told:
            said = ", ".join(f"{num} {outcome}" for outcome, num in sorted(decision["num_answers"].items()))
            line = f"command {decision['command']}: {said or 'sent'}, of {decision['world']} ranks"
            click.echo(f"\r{line:<78}", nl=False, err=True)
    if is_told:
        click.echo("", err=True)
    return decision


def _is_awaited(decision: dict[str, Any]) -> bool:
    """Whether each rank's own word is wanted, and some have not given it yet."""
    is_hunt = decision["kind"] == "hunt" and decision["state"] == "committed"
    return bool(is_hunt and decision["num_answers"].get("done", 0) < decision["world"])


def who() -> str:
    """Who asks, by the name the machine knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as containers have them
        return f"uid {os.getuid()}"


def read_token(given: str | None) -> str:
    """What writes need; ends the command where there is none."""
    path = Path(given).expanduser() if given else _usual_token()
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        fail(f"{path}: {error.strerror}; --token-file names the file with the daemon's token (`token` in its data_dir)")


def _usual_token() -> Path:
    try:
        return token_of(load(configured_file()).daemon)
    except ConfigError as error:
        fail(str(error))


def token_of(config: DaemonConfig) -> Path:
    """Where a daemon that is started here, with this configuration, keeps its token."""
    if config.token_file:
        return Path(config.token_file).expanduser()
    return Path(os.environ.get("CABOOSE_DATA_DIR") or config.data_dir).expanduser() / "token"
