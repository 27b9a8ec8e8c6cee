"""Scores randomised drills: what was found of each run, whether its disease did harm, and how sure the diagnosis was.

Design
------
A run counts as *found* if an incident at warning or above was detected at or after its onset, and is about what the
disease is about: the speed of steps for a disease that takes time, else numbers. (On a busy machine steps slow down by
themselves.) Its diagnosis is that of the worst such incident, the earliest of equals. A run whose disease did no harm
beside its healthy twin is *mild*: it is counted apart, since nothing had to be found. A run that could not be trained
is counted as an error.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caboose_daemon.diagnosis.calibration import lead
from caboose_drills.randomised.diseases import Disease, find
from caboose_drills.randomised.draw import Draw

LOUD = {"info": 0, "warning": 1, "critical": 2}
ABOUT_TIME = frozenset(
    {"straggler", "data_starved", "throughput_regression", "job_stalled", "rank_silent", "monitor_blind"}
    | {"memory_growth"}
)
"""Rules about processes, their speed and their memory."""
LOST = 0.15
"""Share of the twin's progress that a harmful disease costs at least."""
PEAK = 2.0
"""Loss over the level before, above which it is a peak."""
SLOWER = 1.25
"""Ratio of late steps to early ones at which a run counts as slower."""
WASTED = 0.2
"""Share of a step that is lost at least."""
SLOW_AT_ONCE = 0.5
"""Strength from which a slow loader is slow from its first batch on; see `faults.slow_loader`."""
NO_CAUSE = "unknown"
BINS = 10


@dataclass(frozen=True)
class Judged:
    """One run, scored."""

    draw: Draw
    error: str = ""
    is_mild: bool = False
    num_incidents: int = 0
    """At warning or above, since the onset; those that were merged into others not counted."""
    delay: int | None = None
    cause: str = NO_CAUSE
    """The first cause of the diagnosis; `unknown` where that has more of the belief, or there is none."""
    confidence: float = 0.0
    place: int = 0
    """Of the true cause in the diagnosis; 0: not there."""
    origin: bool | None = None
    """Whether rank or layer were named; None where there is none to name, or nothing was found."""
    rules: tuple[str, ...] = ()
    """That spoke at warning or above."""
    critical: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    """Rules at warning or above before the onset."""
    causes: tuple[tuple[str, float], ...] = field(default=(), compare=False)

    @property
    def disease(self) -> Disease:
        return find(self.draw.disease)

    @property
    def is_found(self) -> bool:
        return self.num_incidents > 0

    @property
    def is_right(self) -> bool:
        """Whether the first cause is a true one."""
        return self.cause in self.disease.causes


def judge(draw: Draw, result: dict[str, Any], twin: dict[str, Any] | None) -> Judged:
    """The score of one run; `twin` is the result of its healthy one."""
    did = result["did"]
    # A run that ends in an error of its own, such as a loss that is NaN under a framework, is judged all the same.
    if "error" in did and not result["findings"]:
        return Judged(draw, error=did["error"])
    loud = [
        incident for incident in result["incidents"] if LOUD[incident["worst"]] >= 1 and not incident["merged_into"]
    ]
    spoke = [f for f in result["findings"] if LOUD[f["severity"]] >= 1]
    early = {f["rule"] for f in spoke if f["told_step"] is not None and f["told_step"] < begins_at(draw)}
    if not draw.disease:
        critical = {f["rule"] for f in spoke if f["severity"] == "critical"}
        return Judged(
            draw,
            num_incidents=len(loud),
            rules=tuple(sorted({f["rule"] for f in spoke})),
            critical=tuple(sorted(critical)),
        )
    disease = find(draw.disease)
    about = [incident for incident in loud if _is_about_time(incident) == (disease.harm == "time")]
    since = [(incident, step) for incident in about if (step := _detected(incident, begins_at(draw))) is not None]
    main = min(since, key=lambda pair: (-LOUD[pair[0]["worst"]], pair[1]), default=None)
    causes = _causes(main[0]) if main is not None else ()
    first = causes[0] if causes and causes[0][1] >= 1.0 - sum(c for _, c in causes) else (NO_CAUSE, 0.0)
    return Judged(
        draw,
        is_mild=not does_harm(draw, did, None if twin is None else twin["did"]),
        num_incidents=len(since),
        delay=None if main is None else min(step for _, step in since) - begins_at(draw),
        cause=first[0],
        confidence=first[1],
        place=next((n for n, (cause, _) in enumerate(causes, 1) if cause in disease.causes), 0),
        origin=_origin(did, spoke, [i for i, _ in since]) if main is not None else None,
        rules=tuple(sorted({f["rule"] for f in spoke})),
        critical=tuple(sorted({f["rule"] for f in spoke if f["severity"] == "critical"})),
        early=tuple(sorted(early)),
        causes=causes,
    )


def begins_at(draw: Draw) -> int:
    """The step from which something can be found: the stronger half of the slow loaders is slow from the start."""
    return 0 if draw.disease == "slow_loader" and draw.strength >= SLOW_AT_ONCE else draw.onset


def _is_about_time(incident: dict[str, Any]) -> bool:
    """Whether all that was reported in it is about the speed of steps."""
    return all(m["rule"] in ABOUT_TIME for m in incident["members"] if LOUD[m["severity"]] >= 1)


def _detected(incident: dict[str, Any], onset: int) -> int | None:
    """The step at which an incident first showed something loud since the onset; None if it did not."""
    steps = [
        m["detected_step"] for m in incident["members"] if LOUD[m["severity"]] >= 1 and m["detected_step"] is not None
    ]
    return min((step for step in steps if step >= onset), default=None)


def _causes(incident: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    diagnosis = incident["diagnosis"] or {"causes": ()}
    return tuple((cause["id"], cause["confidence"]) for cause in diagnosis["causes"])


def _origin(did: dict[str, Any], spoke: Iterable[dict[str, Any]], incidents: Iterable[dict[str, Any]]) -> bool | None:
    """Whether a finding or a witness names exactly the ranks, and first one of the layers, in which it began."""
    ranks, layers = set(did.get("origin_ranks", ())), did.get("origin_layers", ())
    if not ranks and not layers:
        return None
    named = [(part["ranks"], part["layers"]) for finding in spoke for part in (finding["first"], finding["last"])]
    named += [(w.get("ranks") or [], w.get("layers") or []) for i in incidents if (w := i["witness"])]
    return any(
        (not ranks or set(where) == ranks) and (not layers or bool(inside and _is_inside(inside[0], layers)))
        for where, inside in named
    )


def _is_inside(layer: str, parts: Sequence[str]) -> bool:
    """Whether a layer is in one of these parts; what wraps the model is no part of the name."""
    return any(f".{layer}.".find(f".{part}.") >= 0 for part in parts)


def does_harm(draw: Draw, did: dict[str, Any], twin: dict[str, Any] | None) -> bool:
    """Whether the disease cost something, beside the healthy twin with the same seed."""
    if did.get("num_bad") or "error" in did:
        return True
    if draw.disease.startswith("nan_"):  # it never came to a bad number
        return False
    harm = find(draw.disease).harm
    if harm == "certain":
        return True
    if harm == "time":
        return _is_slower(did)
    peak, before = did["peak"], did["before"]
    if harm == "peak" and before is not None and (peak is None or peak > PEAK * max(before, 1e-9)):
        return True
    if twin is None:
        return True
    if harm == "validation":
        return _loss_of_progress(did["reported"], twin) >= LOST
    return _loss_of_progress(did["final"], twin) >= LOST


def _loss_of_progress(final: float | None, twin: dict[str, Any]) -> float:
    """Share of what the twin learned that this run did not."""
    if final is None or twin["first"] is None or twin["final"] is None:
        return math.inf
    gained = twin["first"] - twin["final"]
    return (final - twin["final"]) / gained if gained > 0 else math.inf


def _is_slower(did: dict[str, Any]) -> bool:
    """Whether it took a fifth of the steps it was in, or made late steps longer than early ones."""
    if did["wasted"]:
        return bool(did["late_seconds"] and did["wasted"] > WASTED * did["late_seconds"])
    return bool(did["early_seconds"] and did["late_seconds"] and did["late_seconds"] > SLOWER * did["early_seconds"])


@dataclass(frozen=True)
class Totals:
    """The figures over some runs with a disease."""

    num: int
    found: float
    right: float
    near: float
    one: float
    origin: float
    num_origin: int
    delay: float
    brier: float
    error: float
    """Expected calibration error."""


def totals(judged: Sequence[Judged]) -> Totals:
    """Over the runs whose disease did harm."""
    runs = [one for one in judged if not one.error and not one.is_mild]
    found = [one for one in runs if one.is_found]
    origins = [one.origin for one in runs if one.origin is not None]
    delays = sorted(one.delay for one in found if one.delay is not None)
    return Totals(
        num=len(runs),
        found=_share(one.is_found for one in runs),
        right=_share(one.is_right for one in runs),
        near=_share(one.place in (1, 2) for one in runs),
        one=_share(one.num_incidents == 1 for one in runs),
        origin=_share(origin is True for origin in origins),
        num_origin=len(origins),
        delay=delays[len(delays) // 2] if delays else math.nan,
        brier=_mean((one.confidence - one.is_right) ** 2 for one in found if one.cause != NO_CAUSE),
        error=expected_error(found),
    )


def bins(judged: Iterable[Judged]) -> list[tuple[int, float, float]]:
    """By tenth of confidence: number of runs, mean confidence, share that is right."""
    parts: list[list[Judged]] = [[] for _ in range(BINS)]
    for one in judged:
        if one.cause != NO_CAUSE:
            parts[min(BINS - 1, int(one.confidence * BINS))].append(one)
    return [(len(part), _mean(o.confidence for o in part), _share(o.is_right for o in part)) for part in parts]


def expected_error(judged: Iterable[Judged]) -> float:
    """The mean distance between confidence and truth, over the bins, weighted by their runs."""
    parts = [part for part in bins(judged) if part[0]]
    total = sum(num for num, _, _ in parts)
    return sum(num * abs(sure - right) for num, sure, right in parts) / total if total else math.nan


def fitted(judged: Iterable[Judged], strictness: float = 1.0) -> tuple[float, float]:
    """The constants of the daemon's calibration, from uncalibrated runs; the slope is held back like one more run."""
    runs = [one for one in judged if one.is_found and not one.is_mild and one.causes]
    leads = np.array([lead([share for _, share in one.causes]) for one in runs])
    right = np.array([one.causes[0][0] in one.disease.causes for one in runs], dtype=np.float64)
    columns, weights = np.stack([np.ones_like(leads), leads], axis=1), np.zeros(2)
    for _ in range(50):
        chances = 1.0 / (1.0 + np.exp(-columns @ weights))
        held = np.array([0.0, strictness])
        slope = columns.T @ (right - chances) - held * weights
        bend = (columns * (chances * (1.0 - chances))[:, None]).T @ columns + np.diag(held)
        weights += np.linalg.solve(bend, slope)
    return float(weights[0]), float(weights[1])


def _share(values: Iterable[bool]) -> float:
    return _mean(float(value) for value in values)


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else math.nan
