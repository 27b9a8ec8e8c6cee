"""`caboose diagnose`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from caboose_daemon.cli import hypothesis_pages
from caboose_daemon.cli.agent_process import AgentCommandError
from caboose_daemon.cli.agent_process import ask as ask_agent
from caboose_daemon.cli.console import echo
from caboose_daemon.cli.diagnosis_pages import page
from caboose_daemon.cli.options import (
    EXIT_FAILED,
    configured_file,
    connect,
    daemon_option,
    example,
    fail,
    json_lines_option,
    load_config,
    load_one_run,
    load_runs,
    make_console,
    named_job,
    one_line_errors,
    print_json,
)
from caboose_daemon.offline.guided.interview import BadAnswer, Interview
from caboose_daemon.offline.hypotheses.curvature import Curvature
from caboose_daemon.offline.hypotheses.examining import examine
from caboose_daemon.offline.replay.logs import LogError, read_logs
from caboose_daemon.offline.replay.player import play
from caboose_daemon.offline.runs.source import MAX_NAMES, DaemonSource
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.api.client import Client, job_path

WHICH = "Which run? A job, FILE.sqlite:JOB or a log; Enter for none"
INSPECT = "caboose.inspect_command"
Json = dict[str, Any]


@click.command(
    epilog=example(
        "caboose diagnose",
        "caboose diagnose llama-7b --all",
        "caboose diagnose trainer_state.json",
        "caboose diagnose --guided trainer_state.json",
        "caboose diagnose --symptom overfits --symptom slow --answer dropout=0 --json",
        "caboose diagnose llama-7b --now",
        "caboose diagnose journal.sqlite:llama-7b --now --parts train.py:parts --checkpoint step-4000.pt",
        "caboose diagnose llama-7b --json | jq '.incidents[0].diagnosis.causes[0]'",
    )
)
@click.argument("what", metavar="JOB|FILE...", nargs=-1)
@click.option("--all", "with_past", is_flag=True, help="Show past incidents as well as open ones.")
@click.option("--now", "is_now", is_flag=True, help="Test five explanations for a validation that is flat for hours.")
@click.option("--parts", metavar="SCRIPT:FUNCTION", help="With --now: model, loss and data, to measure the curvature.")
@click.option("--checkpoint", metavar="FILE", help="With --parts: the weights to measure at.")
@click.option("--guided", is_flag=True, help="Start from a symptom, and ask for what the run does not show.")
@click.option("--symptom", "symptoms", metavar="NAME", multiple=True, help="With it nothing is asked, unless --guided.")
@click.option("--answer", "answers", metavar="KEY=VALUE", multiple=True, help="An answer of the guided diagnosis.")
@json_lines_option
@daemon_option
def diagnose(
    what: tuple[str, ...],
    with_past: bool,
    is_now: bool,
    parts: str | None,
    checkpoint: str | None,
    guided: bool,
    symptoms: tuple[str, ...],
    answers: tuple[str, ...],
    as_json: bool,
    address: str | None,
) -> None:
    """Show what is wrong with a run, where it began, the likely causes, and the first fix.

    JOB is a job of the daemon; without one, its only job. FILE is a log that `caboose replay` reads: the same rules run
    over it, where its columns allow. If nothing is wrong now, the last incidents are shown.

    With --guided you are asked for the symptoms, and then for what JOB or FILE (or no run) does not answer. Press Enter
    where you do not know. The same causes are weighed. For scripts, --symptom (several are possible) and --answer give
    both beforehand, and nothing is asked: --symptom overfits --answer dropout=0 --answer weight_decay=0.

    With --now, five explanations for "validation is flat, training creeps down" are tested on the run, live or past:
    normal convergence, a saddle or flat region, a schedule that has decayed, a validation that returns the same number,
    silent overfitting or an old checkpoint. Each is supported, refuted, or cannot be decided, with what is missing.

    Confidences add up to 100 % with "unknown". They state how well the evidence fits, not how bad the incident is.

    Exit codes: 0 shown (whatever was found), 1 a guided diagnosis was interrupted, 2 no such job or file, no daemon
    answers.
    """
    console = make_console()
    if (parts or checkpoint) and not (is_now and parts and checkpoint):
        fail("--parts and --checkpoint go together, with --now")
    if is_now:
        _print_now(what, address, parts, checkpoint, as_json=as_json)
        return
    if guided or symptoms:
        talk = Talk(symptoms, _given(answers), is_silent=not guided, is_quiet=as_json)
        found: Iterable[Json] = [_interview(what, address, talk)]
    elif answers:
        fail("--answer belongs to --guided or --symptom")
    else:
        found = _answers(what, address, with_past=with_past)
    for answer in found:
        if as_json:
            print_json(answer)
        else:
            console.print(page(answer, min(console.width, 110)))


def _print_now(
    what: tuple[str, ...], address: str | None, parts: str | None, checkpoint: str | None, *, as_json: bool
) -> None:
    """The hypotheses of --now, tested on each run."""
    with one_line_errors():
        names = what or (named_job(DaemonSource(connect(address)), None),)
    measured = None if parts is None or checkpoint is None else _curvature(parts, checkpoint)
    for run in load_runs(names, address):
        answer = examine(run, measured)
        if as_json:
            print_json(answer)
        else:
            make_console().print(hypothesis_pages.page(answer))


def _curvature(parts: str, checkpoint: str) -> Curvature:
    """The Hessian's largest and smallest eigenvalue at a checkpoint, measured in another process."""
    try:
        answer = ask_agent(INSPECT, ["sharpness", parts, "--checkpoint", checkpoint, "--saddle", "--json"])
    except AgentCommandError as error:
        fail(f"--parts {parts}: {error}")
    found = Curvature.of(answer)
    if found is None:
        fail(f"--parts {parts}: the measurement has no smallest eigenvalue")
    return found


def _answers(what: tuple[str, ...], address: str | None, *, with_past: bool) -> Iterator[Json]:
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
        fail(f"the daemon at {client.url} knows no job yet; name a log file to replay it")
    if len(known) > 1:
        fail(f"which job? The daemon knows {', '.join(known[:MAX_NAMES])}")
    return known


def _ask(client: Client, job: str, known: list[str], *, with_past: bool) -> Json:
    if job not in known:
        names = ", ".join(known[:MAX_NAMES]) or "no job yet"
        fail(f"no job and no file {job!r}; the daemon at {client.url} knows {names}")
    answer: Json = client.get(job_path(job, "/diagnosis"))
    if with_past:
        answer["incidents"] = client.get(job_path(job, "/incidents"))["incidents"]
    return answer


def _replayed(path: Path) -> Iterator[Json]:
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


@dataclass(frozen=True)
class Talk:
    """How a guided diagnosis is held, and what is given beforehand."""

    symptoms: tuple[str, ...]
    answers: dict[str, str]
    is_silent: bool
    is_quiet: bool
    """Questions go to standard error, as the answer is for a program."""


def _given(answers: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in answers:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            fail(f"--answer {text!r}: expected KEY=VALUE, such as lr=1e-4")
        found[key] = value
    return found


def _interview(what: tuple[str, ...], address: str | None, talk: Talk) -> Json:
    """A guided diagnosis."""
    if len(what) > 1:
        fail(f"--guided takes one run, not {len(what)}; name one of {', '.join(what)}")

    def ask(text: str) -> str:
        suffix = " " if text.endswith(("?", ")")) else ": "
        styled = click.style(text, bold=True)
        return str(click.prompt(styled, default="", show_default=False, prompt_suffix=suffix, err=talk.is_quiet))

    def show(text: str) -> None:
        echo(text, err=talk.is_quiet)

    try:
        name = what[0] if what else "" if talk.is_silent else ask(WHICH).strip()
        run = load_one_run(name, address) if name else None
        answer = Interview(ask, show, run, talk.answers, talk.symptoms, talk.is_silent).hold()
    except BadAnswer as error:
        fail(str(error))
    except click.Abort:  # Ctrl-C, or the end of piped input
        echo(err=True)
        fail("interrupted; nothing was kept", EXIT_FAILED)
    show("")
    return answer
