"""`caboose history`."""

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click

from caboose_daemon.cli.history_pages import page
from caboose_daemon.cli.options import (
    configured_file,
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
from caboose_daemon.config import load
from caboose_daemon.offline.runs.common_store import CommonStore
from caboose_daemon.offline.runs.past import between_incidents, remember, rollback_totals
from caboose_daemon.offline.runs.source import MAX_NAMES, HistorySource
from caboose_daemon.offline.trying.knowledge import similar, tried, when_to_stop

UNITS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
DEFAULT_NUM = 50


@click.command(
    epilog=example(
        "caboose history",
        "caboose history --cause lr_too_high --since 4w",
        "caboose history --like llama-7b/3",
        "caboose history --store --like llama-7b/3",
        "caboose history --journal old/journal.sqlite --json | jq -r '.incidents[] | [.id, .cause.id] | @tsv'",
    )
)
@click.argument("job", required=False)
@click.option("--rule", help="Only incidents led by this rule.")
@click.option("--cause", help="Only incidents with this likeliest cause.")
@click.option("--since", metavar="TIME", help="Only the last hours, days or weeks: 12h, 7d, 2w.")
@click.option("--like", metavar="JOB/NUMBER", help="What was tried for incidents like this one, in any job.")
@click.option("--open", "is_open", is_flag=True, help="Only open incidents.")
@click.option(
    "-n",
    "num",
    type=click.IntRange(min=1),
    default=DEFAULT_NUM,
    show_default=True,
    help="Number of incidents, newest first.",
)
@click.option("--store", "is_of_store", is_flag=True, help="Read the PostgreSQL of [store] in the configuration.")
@journal_option
@daemon_option
@json_option
def history(
    job: str | None,
    rule: str | None,
    cause: str | None,
    since: str | None,
    like: str | None,
    is_open: bool,
    num: int,
    is_of_store: bool,
    journal: Path | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Show past incidents of all jobs, with their causes and what resolved them.

    The cause is the likeliest one of the diagnosis. An incident is resolved by how it ended, and by the changes that
    were declared (`caboose note`, monitor.event("fix", ...)) or rolled back while it was open. Changes that were
    declared while none was open, and kept verdicts (`caboose try --job`, `caboose verify --keep`), are listed below.
    With --like, only those for incidents of the same cause or rule, what helped first. The last lines sum up what
    rollback did over the life of these jobs, and what it would have saved where it only advised. Up to 200 incidents
    of each job are kept; of a journal, the 200 newest jobs are read. With --store, all of this is about the jobs of
    every daemon that writes into the database.

    Exit codes: 0 shown (also if there is none), 2 no such job, wrong --since, no daemon or database answers.
    """
    oldest = 0.0 if since is None else time.time() - _seconds(since)
    with one_line_errors(), _place(address, journal, is_of_store=is_of_store) as where:
        jobs = [str(row["job"]) for row in where.jobs()] if job is None else [named_job(where, job)]
        found, totals = remember(where, jobs), rollback_totals(where, jobs)
        known = tried(where, jobs)
        between = between_incidents(where, jobs, found) if like is None else []
    if like is not None:
        about = next((row for row in found if row["id"] == like), None)
        if about is None:
            fail(f"no incident {like!r}; {', '.join(row['id'] for row in found[:MAX_NAMES]) or 'there is none yet'}")
        cause = (about["cause"] or {}).get("id")
        found = [row for row in found if row is about or _is_like(row, about["rule"], cause)]
        known = similar(known, rule=about["rule"], cause=cause or "")
    kept = [row for row in found if _is_wanted(row, rule, cause, oldest, is_open=is_open)]
    known = [row for row in known if row["time"] >= oldest]
    answer = {
        "num_found": len(kept),
        "incidents": kept[:num],
        "tried": known[:num],
        "changes": between[:num],
        "rollback": totals,
        "stop": when_to_stop(known) if like is not None else "",
    }
    if as_json:
        print_json(answer)
    else:
        console = make_console()
        console.print(page(answer, kept, console.width))


@contextmanager
def _place(address: str | None, journal: Path | None, *, is_of_store: bool) -> Iterator[HistorySource]:
    """Where the past is read."""
    if not is_of_store:
        yield source(address, journal)
        return
    if address is not None or journal is not None:
        fail("--store: without --daemon and --journal")
    with closing(CommonStore(load(configured_file()).store)) as store:
        yield store


def _is_like(row: dict[str, Any], rule: str, cause: str | None) -> bool:
    return row["rule"] == rule or (cause is not None and (row["cause"] or {}).get("id") == cause)


def _is_wanted(row: dict[str, Any], rule: str | None, cause: str | None, oldest: float, *, is_open: bool) -> bool:
    if (rule is not None and row["rule"] != rule) or (is_open and not row["is_open"]) or row["last_time"] < oldest:
        return False
    return cause is None or (row["cause"] is not None and row["cause"]["id"] == cause)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d{1,5})([hdw])", text)
    if match is None:
        fail(f"--since {text!r}: expected a number with h, d or w, such as 12h, 7d or 2w")
    return int(match[1]) * UNITS[match[2]]
