"""`caboose rollback`, `caboose apply`, `caboose checkpoint` and `caboose snapshot`: commands to a run's ranks."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from caboose_daemon.cli.console import echo
from caboose_daemon.cli.options import (
    EXIT_FAILED,
    EXIT_OK,
    connect,
    daemon_option,
    example,
    fail,
    json_option,
    one_line_errors,
    print_json,
    read_token,
    the_job,
    token_option,
    user_name,
)
from caboose_daemon.cli.projection_chart import chart
from caboose_daemon.out.api.client import Client, job_path

POLL_SECONDS = 0.2
ANSWER_SECONDS = 3.0
"""How long the other ranks' results are awaited once the outcome is known."""
Json = dict[str, Any]
F = TypeVar("F", bound=Callable[..., None])


def request_options(command: F) -> F:
    """The options of every command to ranks."""
    for option in (
        token_option,
        daemon_option,
        click.option(
            "--wait",
            metavar="SECONDS",
            type=float,
            default=120.0,
            show_default=True,
            help="How long to wait for the outcome.",
        ),
        json_option,
        click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing."),
    ):
        command = option(command)
    return command


@click.command(
    epilog=example(
        "caboose rollback llama-7b --dry-run", "caboose rollback llama-7b --to 4200 --skip 100 --lr-scale 0.5"
    )
)
@click.argument("job", required=False)
@click.option("--to", metavar="STEP", type=click.IntRange(min=0), help="The snapshot to go back to.  [default: newest]")
@click.option(
    "--skip", metavar="STEPS", type=click.IntRange(min=0), default=0, help="Steps of data to skip afterwards."
)
@click.option("--lr-scale", metavar="X", type=float, default=1.0, help="Multiply the learning rate by this afterwards.")
@request_options
def rollback(job: str | None, to: int | None, skip: int, lr_scale: float, **how: Any) -> None:
    """Roll a run back to a snapshot, on all ranks at the same step or on none. Without JOB: the only one.

    The run must be attached with rollback="auto"; the daemon's own --rollback mode does not matter here. Weights,
    optimizer and the rest of the snapshot go back; the data goes on. The ranks' rollback budget and cool-down apply.

    Exit codes: 0 done (or shown, with --dry-run), 1 refused, aborted or no answer in time, 2 cannot ask.
    """
    job = the_job(job, how["address"])
    body = {"to": to, "skip": skip, "lr_scale": lr_scale}
    carry_out(Asked(job, "rollback", body), **how)


class ClipLimit(click.ParamType[float]):
    """A limit of the gradient norm above 0, or `off`."""

    name = "norm"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The limit; 0 for `off`."""
        if value == "off":
            return 0.0
        try:
            limit = float(value)
        except ValueError:
            limit = math.nan
        if not 0.0 < limit < math.inf:
            self.fail(f"{value!r}: give a norm above 0, such as 1.0, or off", param, ctx)
        return limit


@click.command(
    epilog=example(
        "caboose apply llama-7b",
        "caboose apply llama-7b --lr-scale 0.5 --dry-run",
        "caboose apply llama-7b --clip 1.0",
        "caboose apply llama-7b --clip off",
    )
)
@click.argument("job", required=False)
@click.option("--lr-scale", metavar="X", type=float, help="Multiply the learning rate by this.")
@click.option("--clip", metavar="NORM|off", type=ClipLimit(), help="Limit the gradient norm to this, or no longer.")
@request_options
def apply(job: str | None, lr_scale: float | None, clip: float | None, **how: Any) -> None:
    """Change a run's learning rate or clipping, on all ranks at the same step or on none. Without JOB: the only one.

    Without --lr-scale and --clip, the command suggests the factor from the diagnosis of an open incident, if there is
    one, and asks before it sends it.

    Exit codes: 0 done (or shown, with --dry-run), 1 refused, aborted or no answer in time, 2 cannot ask.
    """
    if lr_scale is not None and clip is not None:
        raise click.UsageError("give --lr-scale or --clip: one change at a time, so that its effect can be seen")
    job = the_job(job, how["address"])
    if clip is not None:
        carry_out(Asked(job, "commands", {"kind": "clip", "max_norm": clip}), **how)
    if lr_scale is None:
        lr_scale = _suggested_scale(job, **how)
    carry_out(Asked(job, "commands", {"kind": "scale_lr", "lr_scale": lr_scale}), **how)


@click.command(epilog=example("caboose checkpoint llama-7b"))
@click.argument("job", required=False)
@request_options
def checkpoint(job: str | None, **how: Any) -> None:
    """Save a checkpoint of a run to disk, at the same step on all ranks. Without JOB: the only one.

    Exit codes: 0 done (or shown, with --dry-run), 1 refused, aborted or no answer in time, 2 cannot ask.
    """
    job = the_job(job, how["address"])
    carry_out(Asked(job, "commands", {"kind": "checkpoint"}), **how)


@click.command(epilog=example("caboose snapshot llama-7b"))
@click.argument("job", required=False)
@request_options
def snapshot(job: str | None, **how: Any) -> None:
    """Take a snapshot of a run in memory, at the same step on all ranks. Without JOB: the only one.

    Exit codes: 0 done (or shown, with --dry-run), 1 refused, aborted or no answer in time, 2 cannot ask.
    """
    job = the_job(job, how["address"])
    carry_out(Asked(job, "commands", {"kind": "snapshot"}), **how)


@dataclass(frozen=True)
class Asked:
    """A request: the job, the API endpoint below it, and the body."""

    job: str
    endpoint: str
    body: Json


def carry_out(
    asked: Asked, *, dry_run: bool, as_json: bool, wait: float, address: str | None, token_file: str | None
) -> None:
    """Sends the request, waits for its outcome, prints it, and ends the command."""
    client = connect(address)
    decision = _send(client, asked, read_token(token_file, client.url), dry_run=dry_run)
    if decision["is_open"]:
        decision = _follow(client, asked.job, decision, wait, is_quiet=as_json)
    if as_json:
        print_json(decision)
    else:
        for line in decision["explanation"]:
            echo(line)
        if dry_run:
            for line in chart(decision):
                echo(line)
        if decision["is_open"]:
            echo(f"caboose: no answer within {wait:g} s; see {job_path(asked.job, '/decisions')}", err=True)
    is_done = decision["state"] == "committed" or (dry_run and decision["state"] == "advised")
    sys.exit(EXIT_OK if is_done else EXIT_FAILED)


def _suggested_scale(job: str, *, as_json: bool, address: str | None, **_: Any) -> float:
    """The factor that the diagnosis suggests, after the user has confirmed it."""
    offer = _decisions(connect(address), job)["offer"]
    if offer is None:
        fail(f"no open incident of {job} suggests another learning rate; give --lr-scale")
    confidence = f"{100 * offer['confidence']:.0f} %"
    echo(f"incident {offer['incident']}: {offer['title']} ({confidence}): {offer['first_fix']}", err=True)
    scale = float(offer["lr_scale"])
    if as_json or not sys.stdin.isatty():
        fail(f"to do that: caboose apply {job} --lr-scale {scale:g}")
    click.confirm(f"Multiply the learning rate by {scale:g}?", abort=True, err=True)
    return scale


def _send(client: Client, asked: Asked, token: str, *, dry_run: bool) -> Json:
    """The decision, sent or refused."""
    body = {**asked.body, "dry_run": dry_run, "by": user_name()}
    with one_line_errors():
        status, answer = client.post(job_path(asked.job, f"/{asked.endpoint}"), body, token)
    if "explanation" not in answer:
        fail(str(answer.get("error", f"the daemon answered {status}")))
    decision: Json = answer
    return decision


def _decisions(client: Client, job: str) -> Json:
    with one_line_errors():
        answer: Json = client.get(job_path(job, "/decisions"))
    return answer


def _follow(client: Client, job: str, decision: Json, wait: float, *, is_quiet: bool) -> Json:
    """The decision once its outcome is known, or after `wait` seconds; a terminal shows the progress."""
    deadline = time.monotonic() + wait
    shows_progress = not is_quiet and sys.stderr.isatty()
    outcome_known = math.inf  # the first rank's result is enough to know it
    while (decision["is_open"] or _lacks_results(decision)) and time.monotonic() < min(
        deadline, outcome_known + ANSWER_SECONDS
    ):
        time.sleep(POLL_SECONDS)
        rows = _decisions(client, job)["decisions"]
        decision = next((row for row in rows if row["number"] == decision["number"]), decision)
        outcome_known = min(outcome_known, math.inf if decision["is_open"] else time.monotonic())
        if shows_progress:
            answers = ", ".join(f"{num} {outcome}" for outcome, num in sorted(decision["num_answers"].items()))
            line = f"command {decision['command']}: {answers or 'sent'}, of {decision['world']} ranks"
            echo(f"{line:<78}", nl=False, err=True, is_status=True)
    if shows_progress:
        echo("", err=True)
    return decision


def _lacks_results(decision: Json) -> bool:
    """Whether it is a hunt of which some ranks have not reported their result."""
    is_hunt = decision["kind"] == "hunt" and decision["state"] == "committed"
    return bool(is_hunt and decision["num_answers"].get("done", 0) < decision["world"])
