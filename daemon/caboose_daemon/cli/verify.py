"""`caboose verify`."""

import sys
from pathlib import Path
from typing import Any

import click

from caboose_daemon.cli.keeping import keep
from caboose_daemon.cli.options import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_UNDECIDED,
    daemon_option,
    example,
    fail,
    journal_option,
    json_option,
    make_console,
    named_job,
    one_line_errors,
    print_json,
    source,
    token_option,
)
from caboose_daemon.cli.verify_pages import change_in_words, page
from caboose_daemon.offline.runs.source import RunSource
from caboose_daemon.offline.trying.knowledge import VERDICT
from caboose_daemon.offline.verifying.verdict import SETTLING_STEPS, judge
from caboose_daemon.out.api.steps_around import MAX_STEPS

KINDS = ("fix", "note")
EXIT_CODES = {
    "helped": EXIT_OK,
    **dict.fromkeys(("hurt", "same", "mixed"), EXIT_FAILED),
    **dict.fromkeys(("faster", "unknown"), EXIT_UNDECIDED),
}
DEFAULT_STEPS = 500
Json = dict[str, Any]


@click.command(
    epilog=example(
        "caboose note llama-7b 'halved the learning rate' --kind fix --set lr=1e-4",
        "caboose verify llama-7b",
        "caboose verify llama-7b --keep",
        "caboose verify llama-7b --at 12000 --json | jq .verdict",
    )
)
@click.argument("job", required=False)
@click.option("--at", metavar="STEP", type=click.IntRange(min=0), help="Judge an undeclared change after this step.")
@click.option(
    "--change",
    "number",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    help="Judge the N-th last declared change.",
)
@click.option(
    "--steps",
    type=click.IntRange(30, MAX_STEPS),
    default=DEFAULT_STEPS,
    show_default=True,
    help="Steps to use on each side, at most.",
)
@click.option(
    "--settling",
    metavar="STEPS",
    type=click.IntRange(0, 1000),
    default=SETTLING_STEPS,
    show_default=True,
    help="Steps right after the change to ignore.",
)
@click.option("--keep", "is_kept", is_flag=True, help="Keep the verdict with the job, for `caboose history`.")
@token_option
@journal_option
@daemon_option
@json_option
def verify(
    job: str | None,
    at: int | None,
    number: int,
    steps: int,
    settling: int,
    is_kept: bool,
    token_file: str | None,
    journal: Path | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Judge whether a declared change helped, from the run before and after it.

    A change is declared with `caboose note JOB "..."`, or with monitor.event("fix", lr=1e-4) in the script; without
    --at, the last one is judged. The run is compared with where it would have been: between staying flat and following
    its trend. Correlated noise, outliers and trends are accounted for. If chance alone could explain the difference,
    the verdict is "undecided", with the number of steps that may settle it.

    Exit codes: 0 it helped, 1 it did not (worse, mixed, or no relevant difference), 2 cannot ask (no such job, no
    change declared, no daemon answers), 3 undecided (also if only the step time became better).
    """
    if is_kept and journal is not None:
        fail("--keep and --journal: a journal is only read; ask the daemon")
    with one_line_errors():
        where = source(address, journal)
        name = named_job(where, job)
        events = where.events(name)
        change = _at(where, name, at) if at is not None else _declared(name, events, number)
        around = where.steps(name, change["attempt"], change["step"], before=steps, after=steps + settling)
        verdict = judge(around, change, events, where.incidents(name), settling=settling)
    answer = {"job": name, "change": change, **verdict.as_object()}
    if is_kept:
        what = change_in_words(change)
        first = verdict.quantities[0].comparison
        why = f"loss {first.change}" + (f": {first.why}" if first.why else "")
        fields = {"change": what, "verdict": verdict.overall, "why": why, "text": f"{what}: {verdict.overall}"}
        keep(VERDICT, name, fields, incident=None, address=address, token_file=token_file)
    if as_json:
        print_json(answer)
    else:
        make_console().print(page(answer))
    sys.exit(EXIT_CODES[verdict.overall])


def _declared(job: str, events: list[Json], number: int) -> Json:
    changes = [event for event in events if event["kind"] in KINDS]
    if number > len(changes):
        known = "; declared so far: " + ", ".join(map(change_in_words, changes[-5:])) if changes else ""
        how = f'caboose note {job} "..." declares one, --at STEP names one that was not declared'
        fail(f"{job} has no {'declared change' if number == 1 else f'{number} declared changes'}{known}; {how}")
    return changes[-number]


def _at(where: RunSource, job: str, step: int) -> Json:
    """An undeclared change, in the newest attempt that has taken that step."""
    newest = next(row["attempt"] for row in where.jobs() if row["job"] == job)
    for attempt in range(newest, 0, -1):
        found = where.steps(job, attempt, step, before=1, after=0)["before"]
        if found and (found[-1]["attempt"], found[-1]["step"]) == (attempt, step):
            break
    else:
        fail(f"{job} has no step {step:,}; --at must name a step that it has taken")
    return {"attempt": attempt, "step": step, "time": found[-1]["time"], "kind": "a change", "fields": {}}
