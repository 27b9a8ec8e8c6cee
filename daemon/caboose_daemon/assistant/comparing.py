"""The tool that compares runs of the daemon: the same comparison as `caboose compare`, in short."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import TypedDict

from caboose_daemon.assistant.numbers import Number, short
from caboose_daemon.assistant.reader import AskError, DaemonError
from caboose_daemon.assistant.untrusted import MAX_NAME, FromJob, ListFromJob, clean, from_job, list_from_job
from caboose_daemon.offline.comparing.comparison import compare
from caboose_daemon.offline.runs.of_job import run_of_job
from caboose_daemon.offline.runs.run import RunError
from caboose_daemon.offline.runs.source import DaemonSource
from caboose_daemon.out.api.client import Client

MAX_RUNS = 8
MAX_DIFFERING = 12
MAX_STATEMENTS = 12
IDENTITY = ("run", "name", "source", "where", "state", "steps_per_row", "settings", "cannot_see")


class ComparedRun(TypedDict):
    """One run by its letter; `measures` has its numbers (loss, speed, stability), times in seconds."""

    run: str
    job: FromJob
    state: str
    measures: dict[str, Number]
    cannot_see: ListFromJob


class Differing(TypedDict):
    """A setting in which the runs differ: its value in each run, in their order."""

    setting: FromJob
    values: ListFromJob


class Statement(TypedDict):
    """A conclusion, with what kind it is."""

    kind: str
    text: FromJob


class Comparison(TypedDict):
    """Runs compared at the last step that all of them reached.

    A setting gets credit only from runs that differ in it alone.
    """

    common_step: int
    common_loss: Number
    runs: list[ComparedRun]
    differing_settings: list[Differing]
    num_equal_settings: int
    statements: list[Statement]


def compared(client: Client, jobs: Sequence[str]) -> Comparison:
    if not 2 <= len(set(jobs)) == len(jobs) <= MAX_RUNS:
        raise AskError(f"name 2 to {MAX_RUNS} different jobs; the tool list_jobs has their names")
    source = DaemonSource(client)
    try:
        result = compare([run_of_job(source, job) for job in jobs]).as_object()
    except RunError as error:
        raise DaemonError(clean(error, 400)) from None
    return {
        "common_step": result["common_step"],
        "common_loss": short(result["common_loss"]),
        "runs": [_run(row) for row in result["runs"]],
        "differing_settings": [
            {"setting": from_job(name, MAX_NAME), "values": list_from_job(values, MAX_RUNS, 64)}
            for name, values in list(result["differing"].items())[:MAX_DIFFERING]
        ],
        "num_equal_settings": result["num_equal_settings"],
        "statements": [
            {"kind": clean(row["kind"], 32), "text": from_job(row["text"])}
            for row in result["statements"][:MAX_STATEMENTS]
        ],
    }


def _run(row: dict[str, Any]) -> ComparedRun:
    numbers = {name: value for name, value in _flat(row).items() if _is_number(value)}
    return {
        "run": row["run"],
        "job": from_job(row["name"], MAX_NAME),
        "state": row["state"],
        "measures": {name: short(value) for name, value in numbers.items()},
        "cannot_see": list_from_job(row["cannot_see"], 4, 160),
    }


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """The measures of a run; one with an error bar becomes two, NAME and NAME_error."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name in IDENTITY:
            continue
        if isinstance(value, dict) and value.keys() == {"value", "error"}:
            found |= {name: value["value"], f"{name}_error": value["error"]}
        else:
            found[name] = value
    return found


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity")
