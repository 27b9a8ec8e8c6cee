"""What a replay prints: an object for programs, a few lines for people."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from caboose_daemon.episodes import Episode
from caboose_daemon.replay.player import Judged
from caboose_daemon.rules.finding import Severity

COLOURS = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
MARKS = {Severity.CRITICAL: "page", Severity.WARNING: "ticket", Severity.INFO: "note"}
MAX_SHOWN = 20


def shown(judged: Judged) -> list[Episode]:
    """The episodes somebody would have been told of."""
    return [episode for episode in judged.episodes if episode.severity is not Severity.INFO]


def num_pages(judged: Judged) -> int:
    """How often somebody would have been woken."""
    return sum(episode.severity is Severity.CRITICAL for episode in judged.episodes)


def as_object(judged: Judged) -> dict[str, Any]:
    """For `--json`."""
    return {
        "file": judged.file,
        "points": judged.num_points,
        "incidents": [incident(episode) for episode in shown(judged)],
        "findings": [{"rule": f.rule, "severity": str(f.severity), "step": f.step} for f in judged.findings],
    }


def incident(episode: Episode) -> dict[str, Any]:
    """One episode, as programs read it."""
    return {
        "rule": episode.rule,
        "severity": str(episode.severity),
        "onset_step": episode.first.onset_step,
        "detected_step": episode.told_step,
        "state": episode.last.state if episode.is_open else "resolved",
        "cause": None,
        "summary": episode.worst.summary,
    }


def as_text(judged: Judged) -> Group:
    """For a terminal: the file's verdict, then what was found, in the order it would have been told."""
    episodes = shown(judged)
    pages = num_pages(judged)
    points = f"{judged.num_points:,} points"
    if not episodes:
        return Group(Text.assemble((judged.file, "bold"), f"  {points}: ", ("nothing to report", "green")))
    verdict = f"{_count(pages, 'page')}, {_count(len(episodes) - pages, 'ticket')}"
    head = Text.assemble((judged.file, "bold"), f"  {points}: ", (verdict, "red" if pages else "yellow"))
    table = Table(box=None, padding=(0, 2, 0, 2), show_header=True, header_style="dim")
    for name, align in (("", "left"), ("rule", "left"), ("began", "right"), ("seen", "right"), ("", "left")):
        table.add_column(name, justify=align, no_wrap=name != "")  # type: ignore[arg-type]  # rich wants a Literal
    for episode in episodes[:MAX_SHOWN]:
        table.add_row(
            Text(MARKS[episode.severity], COLOURS[episode.severity]),
            episode.rule,
            str(episode.first.onset_step),
            str(episode.told_step),
            episode.worst.summary,
        )
    rest = len(episodes) - MAX_SHOWN
    more = [Text(f"    and {rest} more; --json has them all", "dim")] if rest > 0 else []
    return Group(head, table, *more)


def total(all_judged: Sequence[Judged]) -> str:
    """The last line over several files."""
    pages = sum(map(num_pages, all_judged))
    tickets = sum(len(shown(judged)) for judged in all_judged) - pages
    paged = sum(bool(num_pages(judged)) for judged in all_judged)
    points = sum(judged.num_points for judged in all_judged)
    return (
        f"{len(all_judged)} runs, {points:,} points: would have paged {pages} times in {paged} of them"
        f" and made {_count(tickets, 'ticket')}"
    )


def _count(num: int, what: str) -> str:
    return f"{num} {what}{'' if num == 1 else 's'}"
