"""Compares two recorded runs, and what a daemon's journal has with what was recorded."""

import json
import math
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]

LOSS = re.compile(r"(?i)\bloss\w*['\"]?\s*[:=\s]\s*(?:tensor\()?(-?\d+\.\d+(?:e[-+]?\d+)?|nan)")


@dataclass
class Verdict:
    """What a case showed."""

    identical: str = ""
    numbers: list[str] = field(default_factory=list)
    steps: int = 0


def read_record(directory: Path) -> dict[int, Rows]:
    """The recorded steps of each rank; of several processes with one rank, the one with the most steps."""
    ranks: dict[int, Rows] = {}
    for path in sorted(directory.glob("rank*.jsonl")):
        rank = int(path.name[4:].split(".")[0])
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        if len(rows) > len(ranks.get(rank, ())):
            ranks[rank] = rows
    return ranks


def printed_losses(text: str) -> list[str]:
    """Those of whole lines: how often a progress bar is drawn depends on the time."""
    lines = [line for line in re.split(r"[\r\n]", text) if "%|" not in line and "it/s" not in line]
    return [loss for line in lines for loss in LOSS.findall(line)]


def same_run(bare: dict[int, Rows], watched: dict[int, Rows]) -> str:
    """`yes`, or the first difference."""
    if bare.keys() != watched.keys():
        return f"no: ranks {sorted(bare)} and {sorted(watched)}"
    for rank, rows in bare.items():
        others = watched[rank]
        if len(rows) != len(others):
            return f"no: rank {rank} took {len(rows)} and {len(others)} steps"
        for number, (one, other) in enumerate(zip(rows, others, strict=True)):
            for name in ("optimizer", "losses", "lr", "norm", "crc"):
                if not _equal(one[name], other[name]):
                    return f"no: {name} of rank {rank} at step {number + 1}: {one[name]} and {other[name]}"
    return "yes" if any(bare.values()) else "nothing recorded"


def _equal(one: Any, other: Any) -> bool:
    return json.dumps(one) == json.dumps(other)  # NaN equals NaN


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All steps, oldest first."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        connection.row_factory = sqlite3.Row
        jobs = {row["id"]: row["name"] for row in connection.execute("SELECT id, name FROM jobs")}
        rows = connection.execute("SELECT * FROM steps ORDER BY job, attempt, step").fetchall()
    return [{**dict(row), "job": jobs[row["job"]]} for row in rows]


def read_parts(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Of each part of a job with several models: the steps in which its optimizer stepped, oldest first."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute("SELECT * FROM part_steps ORDER BY job, attempt, step").fetchall()
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["loss"] is not None:
            parts.setdefault(row["part"], []).append(dict(row))
    return parts


def right_parts(parts: dict[str, list[dict[str, Any]]], record: dict[int, Rows], watched: tuple[int, ...]) -> list[str]:
    """One sentence per part: its numbers against those of the optimizer that they agree with best."""
    return [f"{name}: {'; '.join(_best(rows, record, watched))}" for name, rows in parts.items()]


def _best(rows: list[dict[str, Any]], record: dict[int, Rows], watched: tuple[int, ...]) -> list[str]:
    found = []
    for optimizer in watched:
        steps = truth(record, (optimizer,))
        found.append(right_numbers(rows, steps))
        late = len(steps) - len(rows)
        if late > 0:  # it joined after the first steps
            found.append([f"the first {late} not seen", *right_numbers(rows, steps[late:])])
    return max(found, key=lambda sentences: sum(" right" in each for each in sentences))


def truth(record: dict[int, Rows], watched: tuple[int, ...]) -> list[dict[str, Any]]:
    """Per step of the watched optimizers: the losses, the rate and the norms, over all ranks."""
    steps = []
    ranks = [_merged(rows, watched) for rows in record.values()]
    for parts in zip(*ranks, strict=False):
        losses = [loss for part in parts for loss in part["losses"]]
        steps.append(
            {
                "mean": _mean(losses),
                "sum": _mean([sum(part["losses"]) for part in parts]) if losses else None,
                "last": _mean([part["losses"][-1] for part in parts if part["losses"]]),
                "lr": parts[0]["lr"],
                "norm": _norm(parts, "norm"),
                "raw_norm": _norm(parts, "raw_norm"),
            }
        )
    return steps


def _merged(rows: Rows, watched: tuple[int, ...]) -> list[dict[str, Any]]:
    """One entry per step; the losses before another optimizer's step are that one's own."""
    steps: list[dict[str, Any]] = []
    parts: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["optimizer"] not in watched or (not row["losses"] and row["norm"] == 0.0):
            continue  # the second: a step without gradients that only makes the optimizer's state
        if row["optimizer"] in parts:
            steps.append(_joined(parts))
            parts = {}
        parts[row["optimizer"]] = row
    if parts:
        steps.append(_joined(parts))
    return steps


def _joined(parts: dict[int, dict[str, Any]]) -> dict[str, Any]:
    rows = list(parts.values())
    sizes = [(size, rate) for row in rows for size, rate in zip(row["sizes"], row["lr"], strict=False)]
    return {
        "losses": [loss for row in rows for loss in row["losses"]],
        "lr": max(sizes, default=(0, None), key=lambda pair: pair[0])[1],
        "norm": _together([row["norm"] for row in rows]),
        "raw_norm": _together([row["raw_norm"] for row in rows]),
        "sharded": any(row["sharded"] for row in rows),
    }


def _together(norms: list[float | None]) -> float | None:
    known = [norm for norm in norms if norm is not None]
    return math.sqrt(sum(norm**2 for norm in known)) if len(known) == len(norms) else None


def _norm(parts: Any, name: str) -> float | None:
    values = [part[name] for part in parts]
    if None in values:
        return None
    return math.sqrt(sum(v * v for v in values)) if parts[0]["sharded"] else float(values[0])


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def logged_losses(work: Path, where: tuple[str, str]) -> list[str]:
    """What the script itself logged as the loss of each step, with the digits that it printed."""
    pattern, loss = where
    return [each for path in sorted(work.glob(pattern)) for each in re.findall(loss, path.read_text())]


def right_numbers(journal: list[dict[str, Any]], steps: list[dict[str, Any]], logged: Sequence[str] = ()) -> list[str]:
    """One sentence per kind of number: right, or how it is wrong."""
    for step, loss in zip(steps, logged, strict=False):
        step["logged"] = float(loss)
        step["logged_error"] = 0.51 * 10.0 ** -len(loss.partition(".")[2])
    if not journal:
        return [f"no step reported of {len(steps)}"]
    found = [f"steps {len(journal)} of {len(steps)}"]
    pairs = list(zip(journal, steps, strict=False))
    found.append(_agreement("loss", pairs, ("logged",) if logged else ("mean", "sum", "last"), "loss"))
    found.append(_agreement("lr", pairs, ("lr",), "lr"))
    found.append(_agreement("norm", pairs, ("raw_norm", "norm"), "grad_norm"))
    return found


def _agreement(title: str, pairs: Any, kinds: tuple[str, ...], column: str) -> str:
    known = [(one[column], other) for one, other in pairs if one[column] is not None]
    if not known:
        return f"{title} not reported"
    best = ""
    for kind in kinds:
        compared = [(v, o[kind], o.get(f"{kind}_error", 0.0)) for v, o in known if o.get(kind) is not None]
        wrong = [(i, v, t) for i, (v, t, error) in enumerate(compared) if not _close(v, t, error)]
        if compared and not wrong:
            share = "" if len(known) == len(pairs) else f" ({len(known)} of {len(pairs)} steps)"
            return f"{title} right{'' if kind == kinds[0] else f' ({kind})'}{share}"
        if not best and wrong:
            i, value, true = wrong[0]
            where = f"{len(wrong)} of {len(compared)} steps, first {value:.6g} for {true:.6g} at {i + 1}"
            best = f"{title} differs from the {kind} at {where}"
    return best or f"{title} not recorded"


def _close(value: float, true: float, error: float) -> bool:
    return (math.isnan(value) and math.isnan(true)) or abs(value - true) <= 2e-4 * max(abs(true), 1e-6) + error
