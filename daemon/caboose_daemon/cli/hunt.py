"""`caboose hunt`: asks a run which number broke first."""

from typing import Any

import click

from caboose_daemon.cli.rollback import EXIT_CODES, Asked, carry_out, request_options


@click.command(epilog=EXIT_CODES)
@click.argument("job")
@click.option(
    "--to",
    metavar="STEP",
    type=click.IntRange(min=0),
    help="The snapshot to hunt on.  [default: the newest from before it broke]",
)
@request_options
def hunt(job: str, to: int | None, **how: Any) -> None:
    """Have a run find out which number broke first: module, operation, line of code, samples.

    All ranks run the batch that broke once more, at one step, on a snapshot from before, and go on as if nothing had
    been. The run must have been attached with rollback="auto" and hunt=True; monitor.hunt_nan() needs neither.

    \b
    Example:
        caboose hunt llama-7b
        caboose hunt llama-7b --to 4150 --json
    """
    carry_out(Asked(job, "commands", {"kind": "hunt", "to": to}), **how)
