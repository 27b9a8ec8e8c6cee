"""`caboose diagnose`."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from caboose_daemon.cli.config_file import configured_file
from caboose_daemon.cli.diagnosis_pages import page
from caboose_daemon.cli.exits import fail
from caboose_daemon.cli.guided import interview
from caboose_daemon.config import ConfigError, load
from caboose_daemon.offline.replay.logs import LogError, read_logs
from caboose_daemon.offline.replay.player import play
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.api.client import Client, ClientError, job_path
from caboose_wire.endpoints import DEFAULT_HTTP

PIPED_WIDTH = 120


@click.command()
@click.argument("what", metavar="JOB|FILE...", nargs=-1)
@click.option("--all", "with_past", is_flag=True, help="Show past incidents as well, not only those that are open.")
@click.option("--guided", is_flag=True, help="Begin with the symptom, and ask for what the run does not tell.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per job or log, for programs.")
@click.option(
    "--daemon", "address", metavar="URL", help="The daemon to ask.  [default: CABOOSE_HTTP or 127.0.0.1:9757]"
)
def diagnose(what: tuple[str, ...], with_past: bool, guided: bool, as_json: bool, address: str | None) -> None:
    """Say what is wrong with a run, where it began, why, and what to do first.

    JOB is a job the daemon knows; without one, the only job it knows. FILE is a log that `caboose replay` reads: it is
    played through the same rules, as far as its columns go. Where nothing is wrong now, the last incidents are shown.

    With --guided you are asked for the symptom, then for what JOB or FILE (or nothing, where there is none) does not
    answer already. Nothing is an answer too. The same causes are weighed.

    Confidences add up to 100 % with what is unknown. They say how well the evidence fits, not how bad it is.

    \b
    Example:
        caboose diagnose
        caboose diagnose llama-7b --all
        caboose diagnose trainer_state.json
        caboose diagnose --guided trainer_state.json
        caboose diagnose llama-7b --json | jq '.incidents[0].diagnosis.causes[0]'

    Exit codes: 0 shown (whatever was found), 1 a guided diagnosis was broken off, 2 no such job or file, nobody at
    --daemon.
    """
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    for answer in (
        [interview(what, address, is_quiet=as_json)] if guided else _answers(what, address, with_past=with_past)
    ):
        if as_json:
            click.echo(json.dumps(answer))
        else:
            console.print(page(answer, min(console.width, 110)))


def _answers(what: tuple[str, ...], address: str | None, *, with_past: bool) -> Iterator[dict[str, Any]]:
    files = [Path(name) for name in what if Path(name).exists() or "/" in name]
    jobs = [name for name in what if Path(name) not in files]
    if jobs or not what:
        client = _client(address)
        for job in jobs or [_only_job(client)]:
            yield _ask(client, job, with_past=with_past)
    for path in files:
        yield from _replayed(path)


def _client(address: str | None) -> Client:
    try:
        return Client(address or os.environ.get("CABOOSE_HTTP") or DEFAULT_HTTP)
    except ValueError as error:
        fail(f"--daemon {error}")


def _only_job(client: Client) -> str:
    jobs = [str(row["job"]) for row in _get(client, "/api/v1/jobs")["jobs"]]
    if not jobs:
        fail(f"the daemon at {client.url} knows no job yet; name a log file to have it replayed")
    if len(jobs) > 1:
        fail(f"which job? The daemon knows {', '.join(jobs[:20])}")
    return jobs[0]


def _ask(client: Client, job: str, *, with_past: bool) -> dict[str, Any]:
    jobs = [str(row["job"]) for row in _get(client, "/api/v1/jobs")["jobs"]]
    if job not in jobs:
        fail(f"no job and no file {job!r}; the daemon at {client.url} knows {', '.join(jobs[:20]) or 'no job yet'}")
    path = job_path(job)
    answer: dict[str, Any] = _get(client, f"{path}/diagnosis")
    if with_past:
        answer["incidents"] = _get(client, f"{path}/incidents")["incidents"]
    return answer


def _get(client: Client, path: str) -> Any:
    try:
        return client.get(path)
    except ClientError as error:
        fail(str(error))


def _replayed(path: Path) -> Iterator[dict[str, Any]]:
    try:
        rules = load(configured_file()).rules
        for log in read_logs(path):
            judged = play(log, rules)
            worst = max((i.worst for i in judged.incidents if i.is_open), key=lambda s: s.rank, default=None)
            yield {
                "job": judged.file,
                "state": "log",
                "health": "ok" if worst is None else str(worst),
                "step": int(log.steps[-1]) if len(log.steps) else 0,
                "num_open": sum(incident.is_open for incident in judged.incidents),
                "incidents": [json_shapes.incident(incident) for incident in reversed(judged.incidents)],
            }
    except (ConfigError, LogError) as error:
        fail(str(error))
