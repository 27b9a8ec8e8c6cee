"""`caboose diagnose`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from caboose_daemon.cli.diagnosis_pages import page
from caboose_daemon.cli.guided import interview
from caboose_daemon.cli.options import (
    configured_file,
    connect,
    daemon_option,
    fail,
    json_lines_option,
    load_config,
    make_console,
    one_line_errors,
    print_json,
)
from caboose_daemon.offline.replay.logs import LogError, read_logs
from caboose_daemon.offline.replay.player import play
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.api.client import Client, job_path


@click.command()
@click.argument("what", metavar="JOB|FILE...", nargs=-1)
@click.option("--all", "with_past", is_flag=True, help="Show past incidents as well, not only those that are open.")
@click.option("--guided", is_flag=True, help="Begin with the symptom, and ask for what the run does not tell.")
@json_lines_option
@daemon_option
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
    console = make_console()
    answers = [interview(what, address, is_quiet=as_json)] if guided else _answers(what, address, with_past=with_past)
    for answer in answers:
        if as_json:
            print_json(answer)
        else:
            console.print(page(answer, min(console.width, 110)))


def _answers(what: tuple[str, ...], address: str | None, *, with_past: bool) -> Iterator[dict[str, Any]]:
    files = [Path(name) for name in what if Path(name).exists() or "/" in name]
    jobs = [name for name in what if Path(name) not in files]
    with one_line_errors():
        if jobs or not what:
            client = connect(address)
            known = [str(row["job"]) for row in client.get("/api/v1/jobs")["jobs"]]
            for job in jobs or _only(known, client):
                yield _ask(client, job, known, with_past=with_past)
    for path in files:
        yield from _replayed(path)


def _only(known: list[str], client: Client) -> list[str]:
    if not known:
        fail(f"the daemon at {client.url} knows no job yet; name a log file to have it replayed")
    if len(known) > 1:
        fail(f"which job? The daemon knows {', '.join(known[:20])}")
    return known


def _ask(client: Client, job: str, known: list[str], *, with_past: bool) -> dict[str, Any]:
    if job not in known:
        fail(f"no job and no file {job!r}; the daemon at {client.url} knows {', '.join(known[:20]) or 'no job yet'}")
    answer: dict[str, Any] = client.get(job_path(job, "/diagnosis"))
    if with_past:
        answer["incidents"] = client.get(job_path(job, "/incidents"))["incidents"]
    return answer


def _replayed(path: Path) -> Iterator[dict[str, Any]]:
    rules = load_config(configured_file()).rules
    try:
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
    except LogError as error:
        fail(str(error))
