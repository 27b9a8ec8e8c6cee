"""The tools about numbers over time: curves, single steps, layers."""

import urllib.parse
from collections.abc import Sequence

from typing_extensions import TypedDict

from caboose_daemon.assistant.budget import Page, paged
from caboose_daemon.assistant.numbers import Number, short
from caboose_daemon.assistant.reader import AskError, Json, Reader
from caboose_daemon.assistant.untrusted import MAX_NAME, FromJob, from_job
from caboose_daemon.format import to_float
from caboose_daemon.steps.samples.stats import STATS

DEFAULT_COLUMNS = ("loss", "grad_norm", "lr")
MAX_COLUMNS = 6
MAX_POINTS = 100
MAX_AROUND = 20
MAX_SAMPLES = 8
"""Samples of a layer, the last ones."""
ALL_ROWS = 2000
NOT_CURVES = ("attempt", "step", "time", "first_step", "first_time", "num_steps", "num_bad", "num_bad_losses", "parts")


class Curve(TypedDict):
    """One number over the buckets; `unit` is empty for a plain number."""

    name: str
    unit: str
    values: list[Number]


class Series(TypedDict):
    """Curves in buckets of neighbouring steps. `steps` are the last step of each bucket.

    `name` is the mean of a bucket, `name_min` and `name_max` its extremes; `bad` counts steps with a non-finite number.
    """

    job: FromJob
    steps_per_bucket: int
    attempts: list[int]
    steps: list[int]
    bad: list[int]
    curves: list[Curve]
    other_columns: list[str]


class Steps(TypedDict):
    """Single steps around one step, oldest first."""

    job: FromJob
    attempts: list[int]
    steps: list[int]
    curves: list[Curve]


class LayerRow(TypedDict):
    """One layer or module, or `num` neighbouring ones up to `last_name`; its last samples, the newest last."""

    name: FromJob
    last_name: FromJob | None
    num: int
    values: list[Number]


class Layers(TypedDict):
    """One statistic of the layers, the most extreme last sample first; a non-finite value is the most extreme."""

    job: FromJob
    stat: str
    kept: str
    sampled_steps: list[int]
    layers: list[LayerRow]
    page: Page
    why_empty: FromJob | None


class LayerStat(TypedDict):
    """One statistic of one layer over its samples."""

    stat: str
    values: list[Number]


class Layer(TypedDict):
    """Every statistic of one layer and its module at the last samples."""

    job: FromJob
    layer: FromJob
    kind: FromJob
    sampled_steps: list[int]
    stats: list[LayerStat]


def series(
    reader: Reader, job: str, columns: Sequence[str], points: int, first: int | None, last: int | None
) -> Series:
    window = {"points": points, "from": first, "to": last}
    query = urllib.parse.urlencode({key: value for key, value in window.items() if value is not None})
    rows = reader.of_job(job, f"/series?{query}")["steps"]
    rows = _thinned(rows, points)
    known = [name for name in (rows[0] if rows else ()) if name not in NOT_CURVES]
    wanted = _chosen(columns or DEFAULT_COLUMNS, known)
    return {
        "job": from_job(job, MAX_NAME),
        "steps_per_bucket": max((row["step"] - row["first_step"] + 1 for row in rows), default=0),
        "attempts": [row["attempt"] for row in rows],
        "steps": [row["step"] for row in rows],
        "bad": [row["num_bad"] for row in rows],
        "curves": _curves(reader, rows, wanted),
        "other_columns": [name for name in known if name not in wanted][:40],
    }


def steps(reader: Reader, job: str, attempt: int, step: int, columns: Sequence[str], around: int) -> Steps:
    query = f"/steps?attempt={attempt}&step={step}&before={around}&after={around}"
    answer = reader.of_job(job, query)
    rows = [*answer["before"], *answer["after"]]
    known = [name for name in (rows[0] if rows else ()) if name not in (*NOT_CURVES, "named")]
    return {
        "job": from_job(job, MAX_NAME),
        "attempts": [row["attempt"] for row in rows],
        "steps": [row["step"] for row in rows],
        "curves": _curves(reader, rows, _chosen(columns or DEFAULT_COLUMNS, known)),
    }


def _thinned(rows: list[Json], points: int) -> list[Json]:
    """The last rows, where several attempts give more than were asked for."""
    return rows[-2 * points :]


def _chosen(columns: Sequence[str], known: Sequence[str]) -> list[str]:
    if len(columns) > MAX_COLUMNS:
        raise AskError(f"{len(columns)} columns; ask for at most {MAX_COLUMNS} at a time")
    unknown = [name for name in columns if name not in known]
    if known and unknown:
        raise AskError(f"no column {unknown[0][:64]!r}; the columns: {', '.join(known)}")
    return list(columns) if known else []


def _curves(reader: Reader, rows: list[Json], wanted: Sequence[str]) -> list[Curve]:
    units = {c["name"]: c["unit"] for c in reader.get("/api/v1/columns")["columns"] if c["scope"] == "job"}
    return [
        {
            "name": name,
            "unit": units.get(name.removesuffix("_min").removesuffix("_max"), ""),
            "values": [short(row.get(name)) for row in rows],
        }
        for name in wanted
    ]


def layers(reader: Reader, budget: int, job: str, stat: str, *, smallest: bool, offset: int) -> Layers:
    if stat not in STATS:
        raise AskError(f"no statistic {stat[:64]!r}; choose one of {', '.join(STATS)}")
    keep = "smallest" if smallest else "largest"
    newest = reader.of_job(job, f"/layers?stat={stat}&points=100&rows=1&keep={keep}")
    columns = newest["samples"]["first_step"]
    first = columns[-MAX_SAMPLES] if len(columns) >= MAX_SAMPLES else 0
    answer = reader.of_job(job, f"/layers?stat={stat}&points={MAX_SAMPLES}&rows={ALL_ROWS}&from={first}&keep={keep}")
    rows = sorted(_layer_rows(answer), key=lambda row: _place(row["values"], smallest=smallest))
    kept, page = paged(rows, offset, budget)
    reason = next((s["reason"] for s in answer["stats"] if s["stat"] == stat), None)
    return {
        "job": from_job(job, MAX_NAME),
        "stat": stat,
        "kept": keep,
        "sampled_steps": answer["samples"]["step"],
        "layers": kept,
        "page": page,
        "why_empty": from_job(reason) if reason and not rows else None,
    }


def _layer_rows(answer: Json) -> list[LayerRow]:
    names = answer["rows"]
    values = answer["values"]
    return [
        {
            "name": from_job(name, MAX_NAME),
            "last_name": from_job(last, MAX_NAME) if num > 1 else None,
            "num": num,
            "values": [short(value) for value in row],
        }
        for name, last, num, row in zip(names["name"], names["last_name"], names["num"], values, strict=True)
        if any(value is not None for value in row)
    ]


def _place(values: Sequence[Number], *, smallest: bool) -> float:
    """The order of a layer by its last sample: non-finite first, unknown last."""
    last = next((value for value in reversed(values) if value is not None), None)
    if last is None:
        return float("inf")
    if isinstance(last, str):
        return float("-inf")
    number = to_float(last)
    return number if smallest else -number


def layer(reader: Reader, job: str, name: str) -> Layer:
    answer = reader.of_job(job, f"/layers/{urllib.parse.quote(name, safe='')}")
    samples = answer["samples"]
    about = answer["layer"] or answer["module"]
    stats: list[LayerStat] = [
        {"stat": stat, "values": [short(value) for value in values[-MAX_SAMPLES:]]}
        for stat, values in answer["stats"].items()
    ]
    return {
        "job": from_job(job, MAX_NAME),
        "layer": from_job(about["name"], MAX_NAME),
        "kind": from_job(about["kind"], MAX_NAME),
        "sampled_steps": samples["step"][-MAX_SAMPLES:],
        "stats": stats,
    }
