"""Drill results as tables: for the terminal, and as a Markdown page with the confusion matrix."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.table import Table
from rich.text import Text

from caboose_daemon.ops.drills import scores
from caboose_daemon.ops.drills.catalogue import Catalogue
from caboose_daemon.ops.drills.results import Result


def catalogue_table(catalogue: Catalogue) -> Table:
    """The drills."""
    table = Table("drill", "rule", "ranks", "s/seed", "about", box=box.SIMPLE)
    for drill in (*catalogue.drills, *catalogue.healthy):
        table.add_row(drill.name, drill.rule or "-", str(drill.ranks), f"{drill.seconds:g}", drill.about)
    return table


def terminal(results: Sequence[Result]) -> Table:
    """One line per drill."""
    table = Table(box=box.SIMPLE)
    for column in ("drill", "found", "delay", "origin", "cause", "incidents", "wrong", "seconds"):
        justify: Literal["left", "right"] = "right" if column in ("delay", "seconds") else "left"
        table.add_column(column, justify=justify, no_wrap=column == "drill")
    for result in results:
        name = Text(result.name, style="" if scores.is_passed(result) else "bold red")
        columns = (found, delay, origin, cause, incidents, wrong, seconds)
        table.add_row(name, *(column(result) for column in columns))
    return table


def found(result: Result) -> str:
    """In how many seeds."""
    num_errors = sum(bool(outcome.error) for outcome in result.outcomes)
    failed = f", {num_errors} failed" if num_errors else ""
    if result.drill.is_healthy:
        return f"healthy x {len(result.outcomes)}{failed}"
    return f"{sum(outcome.found for outcome in result.outcomes)}/{len(result.outcomes)}{failed}"


def delay(result: Result) -> str:
    """The median, in steps."""
    steps = scores.median_delay(result)
    return "-" if steps is None else f"{steps:g}"


def origin(result: Result) -> str:
    """In how many of the seeds that have one."""
    if not result.drill.has_origin:
        return ""
    return f"{sum(outcome.origin is True for outcome in result.outcomes)}/{len(result.outcomes)}"


def cause(result: Result) -> str:
    """The true cause's place in the median seed, and the cause that was first instead."""
    rank = scores.usual_cause_rank(result)
    if rank is None:
        return "" if result.drill.is_healthy else "-"
    first = Counter(outcome.causes[0] for outcome in result.outcomes if outcome.causes).most_common(1)
    instead = f" ({first[0][0]})" if rank > 1 and first else ""
    return ("missing" if math.isinf(rank) else f"{rank:g}.") + instead


def incidents(result: Result) -> str:
    """The number of incidents of the fault: one number, or a range over the seeds."""
    counted = [outcome.num_incidents for outcome in result.outcomes if outcome.num_incidents is not None]
    if not counted:
        return ""
    fewest, most = min(counted), max(counted)
    return str(most) if fewest == most else f"{fewest}-{most}"


def wrong(result: Result) -> str:
    """Rules that should not have fired, with the number of seeds; critical ones with a mark."""
    counted: Counter[str] = Counter()
    for outcome in result.outcomes:
        counted.update(name + ("!" if severity == "critical" else "") for name, severity in outcome.wrong.items())
    return ", ".join(f"{name} {count}" for name, count in counted.most_common())


def seconds(result: Result) -> str:
    """Per seed, with all overhead."""
    return f"{result.seconds / max(1, len(result.outcomes)):.1f}"


def matrix(results: Sequence[Result]) -> list[list[str]]:
    """Drill x rule, for rules that fired at all: number of seeds, at warning or above."""
    rules = sorted({rule for result in results for outcome in result.outcomes for rule in outcome.spoke})
    rows = [["drill", *rules]]
    for result in results:
        counted = Counter(rule for outcome in result.outcomes for rule in outcome.spoke)
        cells = []
        for rule in rules:
            text = str(counted[rule]) if counted[rule] else ""
            cells.append(f"**{text}**" if text and rule == result.drill.rule else text)
        rows.append([f"{result.name} ({len(result.outcomes)})", *cells])
    return rows


def markdown(results: Sequence[Result], command: str) -> str:
    """The whole page."""
    heads = ["drill", "rule", "found", "delay, steps", "origin", "cause", "incidents", "wrong", "seconds a seed"]
    rows = [heads]
    for result in results:
        rule = f"`{result.drill.rule}`" if result.drill.rule else ""
        columns = (found, delay, origin, cause, incidents, wrong, seconds)
        rows.append([f"`{result.name}`", rule, *(column(result) for column in columns)])
    parts = [
        "# Drills",
        "",
        "Small models with a fault of known cause, trained through agent, ZeroMQ and daemon. Written by",
        "",
        f"    {command}",
        "",
        "## Goals",
        "",
        *(f"- {_mark(goal.is_met)}: {goal.text}" for goal in scores.goals(results)),
        "",
        "## What was found",
        "",
        "Delay: median steps from the fault to the finding. Origin: seeds in which the rank or layer of origin was",
        "named. Cause: the true cause's place in the median seed's diagnosis. Incidents: how many the fault made (one",
        "is right; a seed with more has failed). Wrong: rules that fired at warning or above and should not have, with",
        "the number of seeds; `!` marks critical.",
        "",
        *_pipes(rows),
        "",
        "## Which rules fired",
        "",
        "Seeds in which each rule fired at warning or above (of those in brackets); the drill's own rule in bold.",
        "",
        *_pipes(matrix(results)),
        "",
        "## The drills",
        "",
        *(f"- `{result.name}`: {result.drill.about}" for result in results),
    ]
    return "\n".join(parts) + "\n"


def _mark(is_met: bool | None) -> str:
    return "not measured" if is_met is None else "met" if is_met else "MISSED"


def _pipes(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]
