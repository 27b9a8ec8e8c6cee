"""`caboose hunt`."""

from typing import Any

import click

from caboose_daemon.cli.options import example, the_job
from caboose_daemon.cli.rollback import Asked, carry_out, request_options


@click.command(epilog=example("caboose hunt llama-7b", "caboose hunt llama-7b --to 4150 --json"))
@click.argument("job", required=False)
@click.option(
    "--to",
    metavar="STEP",
    type=click.IntRange(min=0),
    help="The snapshot to hunt on.  [default: the newest before the break]",
)
@request_options
def hunt(job: str | None, to: int | None, **how: Any) -> None:
    """Find which number broke first in a run: module, operation, line of code, samples. Without JOB: the only one.

    All ranks run the broken batch once more, at the same step, on a snapshot from before, and then continue as if
    nothing had happened. The run must be attached with rollback="auto" and hunt=True; monitor.hunt_nan() needs neither.

    Exit codes: 0 done (or shown, with --dry-run), 1 refused, aborted or no answer in time, 2 cannot ask.
    """
    job = the_job(job, how["address"])
    carry_out(Asked(job, "commands", {"kind": "hunt", "to": to}), **how)
