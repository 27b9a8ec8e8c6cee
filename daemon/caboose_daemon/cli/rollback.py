"""`caboose rollback`, `caboose apply`, `caboose checkpoint` and `caboose snapshot`: asking a run for something."""

import json
import sys
from typing import Any

import click

from caboose_daemon.cli.request_client import Asked, connect, decisions, follow, options, sender

DONE, NOT_DONE = 0, 1
EXIT_CODES = "Exit codes: 0 done (or shown, with --dry-run), 1 refused, aborted or nothing heard, 2 cannot ask."


@click.command(epilog=EXIT_CODES)
@click.argument("job")
@click.option("--to", metavar="STEP", type=click.IntRange(min=0), help="The snapshot to go back to.  [default: newest]")
@click.option(
    "--skip", metavar="STEPS", type=click.IntRange(min=0), default=0, help="Steps of data to drop afterwards."
)
@click.option("--lr-scale", metavar="X", type=float, default=1.0, help="Multiply the learning rate by this afterwards.")
@options
def rollback(job: str, to: int | None, skip: int, lr_scale: float, **how: Any) -> None:
    """Roll a run back to a snapshot, on all ranks at one step or on none.

    The run must have been attached with rollback="auto"; what the daemon may do by itself does not matter here.
    Weights, optimizer and the rest go back, the data goes on. The ranks keep their budget and cool-down, whoever asks.

    \b
    Example:
        caboose rollback llama-7b --dry-run
        caboose rollback llama-7b --to 4200 --skip 100 --lr-scale 0.5
    """
    body = {"to": to, "skip": skip, "lr_scale": lr_scale}
    carry_out(Asked(job, "rollback", body), **how)


@click.command(epilog=EXIT_CODES)
@click.argument("job")
@click.option("--lr-scale", metavar="X", type=float, help="What to multiply the learning rate by.")
@options
def apply(job: str, lr_scale: float | None, **how: Any) -> None:
    """Multiply a run's learning rate, on all ranks at one step or on none.

    Without --lr-scale, the fix that the diagnosis of an open incident calls for is offered, if a rate can bring it.

    \b
    Example:
        caboose apply llama-7b
        caboose apply llama-7b --lr-scale 0.5 --dry-run
    """
    if lr_scale is None:
        lr_scale = _offered(job, **how)
    carry_out(Asked(job, "commands", {"kind": "scale_lr", "lr_scale": lr_scale}), **how)


@click.command(epilog=EXIT_CODES)
@click.argument("job")
@options
def checkpoint(job: str, **how: Any) -> None:
    """Have a run save a checkpoint to disk, at one step on all ranks.

    \b
    Example:
        caboose checkpoint llama-7b
    """
    carry_out(Asked(job, "commands", {"kind": "checkpoint"}), **how)


@click.command(epilog=EXIT_CODES)
@click.argument("job")
@options
def snapshot(job: str, **how: Any) -> None:
    """Have a run take a snapshot in memory, at one step on all ranks.

    \b
    Example:
        caboose snapshot llama-7b
    """
    carry_out(Asked(job, "commands", {"kind": "snapshot"}), **how)


def _offered(job: str, *, as_json: bool, address: str | None, **_: Any) -> float:
    """The scale that the diagnosis calls for, once somebody has agreed to it."""
    offer = decisions(connect(address), job)["offer"]
    if offer is None:
        click.echo(f"caboose: no open incident of {job} calls for another learning rate; give --lr-scale", err=True)
        sys.exit(2)
    sure = f"{100 * offer['confidence']:.0f} %"
    click.echo(f"incident {offer['incident']}: {offer['title']} ({sure}): {offer['first_fix']}", err=True)
    scale = float(offer["lr_scale"])
    if as_json or not sys.stdin.isatty():
        click.echo(f"caboose: to do that: caboose apply {job} --lr-scale {scale:g}", err=True)
        sys.exit(2)
    click.confirm(f"Multiply the learning rate by {scale:g}?", abort=True, err=True)
    return scale


def carry_out(
    asked: Asked, *, dry_run: bool, as_json: bool, wait: float, address: str | None, token_file: str | None
) -> None:
    """Asks, waits for the outcome, and ends the command with it."""
    client = connect(address)
    decision = sender(client, token_file)(asked, dry_run=dry_run)
    if decision["is_open"]:
        decision = follow(client, asked.job, decision, wait, is_quiet=as_json)
    if as_json:
        click.echo(json.dumps(decision))
    else:
        for line in decision["explanation"]:
            click.echo(line)
        if decision["is_open"]:
            click.echo(f"caboose: nothing heard within {wait:g} s; see /api/v1/jobs/{asked.job}/decisions", err=True)
    is_done = decision["state"] == "committed" or (dry_run and decision["state"] == "advised")
    sys.exit(DONE if is_done else NOT_DONE)
