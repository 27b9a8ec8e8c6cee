"""`caboose history`."""

import re
import time
from pathlib import Path
from typing import Any

import click

from caboose_daemon.cli.history_pages import page
from caboose_daemon.cli.options import (
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
)
from caboose_daemon.offline.runs.past import remember, rollback_totals

UNITS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
DEFAULT_NUM = 50


@click.command(
    epilog=example(
        "caboose history",
        "caboose history --cause lr_too_high --since 4w",
        "caboose history --journal old/journal.sqlite --json | jq -r '.incidents[] | [.id, .cause.id] | @tsv'",
    )
)
@click.argument("job", required=False)
@click.option("--rule", help="Only incidents led by this rule.")
@click.option("--cause", help="Only incidents with this likeliest cause.")
@click.option("--since", metavar="TIME", help="Only the last hours, days or weeks: 12h, 7d, 2w.")
@click.option("--open", "is_open", is_flag=True, help="Only open incidents.")
@click.option(
    "-n",
    "num",
    type=click.IntRange(min=1),
    default=DEFAULT_NUM,
    show_default=True,
    help="Number of incidents, newest first.",
)
@journal_option
@daemon_option
@json_option
def history(
    job: str | None,
    rule: str | None,
    cause: str | None,
    since: str | None,
    is_open: bool,
    num: int,
    journal: Path | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Show past incidents of all jobs, with their causes and what resolved them.

    The cause is the likeliest one of the diagnosis. An incident is resolved by how it ended, and by the changes that
    were declared (`caboose note`, monitor.event("fix", ...)) or rolled back while it was open. The last lines sum up
    what rollback did over the life of these jobs, and what it would have saved where it only advised. Up to 200
    incidents of each job are kept; of a journal, the 200 newest jobs are read.

    Exit codes: 0 shown (also if there is none), 2 no such job, wrong --since, no daemon answers.
    """
    oldest = 0.0 if since is None else time.time() - _seconds(since)
    with one_line_errors():
        where = source(address, journal)
        jobs = [str(row["job"]) for row in where.jobs()] if job is None else [named_job(where, job)]
        found, totals = remember(where, jobs), rollback_totals(where, jobs)
    kept = [row for row in found if _is_wanted(row, rule, cause, oldest, is_open=is_open)]
    answer = {"num_found": len(kept), "incidents": kept[:num], "rollback": totals}
    if as_json:
        print_json(answer)
    else:
        console = make_console()
        console.print(page(answer, kept, console.width))


def _is_wanted(row: dict[str, Any], rule: str | None, cause: str | None, oldest: float, *, is_open: bool) -> bool:
    if (rule is not None and row["rule"] != rule) or (is_open and not row["is_open"]) or row["last_time"] < oldest:
        return False
    return cause is None or (row["cause"] is not None and row["cause"]["id"] == cause)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d{1,5})([hdw])", text)
    if match is None:
        fail(f"--since {text!r}: expected a number with h, d or w, such as 12h, 7d or 2w")
    return int(match[1]) * UNITS[match[2]]
