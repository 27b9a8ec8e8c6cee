"""The tables of the randomised drills, as Markdown."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

from randomised_scores import ABOUT_TIME, NO_CAUSE, Judged, bins, totals

from caboose_drills.randomised.diseases import DISEASES

HALVES = ("held", "tune")
WIDTH = 20
"""Characters of a bar in the reliability diagram."""


def page(judged: Sequence[Judged], num_drawn: int, fingerprint: str) -> str:
    """Everything that was measured, for docs/diagnosis.md."""
    ill = [one for one in judged if one.draw.disease]
    well = [one for one in judged if not one.draw.disease]
    lines = [
        f"Measured: {len(ill)} runs with a disease and {len(well)} healthy twins, of {num_drawn} drawn "
        f"(generator {fingerprint}). The rules were tuned on the `tune` half first; the other has been looked at "
        "since.",
        "",
        *_table([_HEAD, *(_row(half, [o for o in ill if o.draw.half == half]) for half in HALVES), _row("both", ill)]),
        "",
        *_healthy(well),
        "",
        "By architecture, held half:",
        "",
        *_by(ill, lambda one: one.draw.family),
        "",
        "By loop, held half:",
        "",
        *_by(ill, lambda one: one.draw.loop),
        "",
        "How often a confidence is right, held half (found runs whose first cause is not unknown):",
        "",
        *_reliability([one for one in ill if one.draw.half == "held"]),
        "",
        "By disease, both halves; wrong first causes with their number:",
        "",
        *_by_disease(ill),
    ]
    return "\n".join(lines) + "\n"


_HEAD = [
    "",
    "runs",
    "mild",
    "errors",
    "found",
    "first cause",
    "first two",
    "one incident",
    "origin",
    "delay",
    "Brier",
    "ECE",
]


def _row(name: str, judged: Sequence[Judged]) -> list[str]:
    found = totals(judged)
    return [
        name,
        str(found.num),
        str(sum(one.is_mild for one in judged)),
        str(sum(bool(one.error) for one in judged)),
        _percent(found.found),
        _percent(found.right),
        _percent(found.near),
        _percent(found.one),
        f"{_percent(found.origin)} of {found.num_origin}" if found.num_origin else "",
        "" if math.isnan(found.delay) else f"{found.delay:.0f}",
        "" if math.isnan(found.brier) else f"{found.brier:.2f}",
        "" if math.isnan(found.error) else f"{found.error:.2f}",
    ]


def _by(ill: Sequence[Judged], key: Callable[[Judged], str]) -> list[str]:
    held = [one for one in ill if one.draw.half == "held"]
    names = sorted({key(one) for one in held})
    return _table([_HEAD, *(_row(name, [one for one in held if key(one) == name]) for name in names)])


def _healthy(well: Sequence[Judged]) -> list[str]:
    runs = [one for one in well if not one.error]
    rows = [["healthy twins", "runs", "errors", "with a critical", "with a warning", "with one about numbers", "rules"]]
    for half in (*HALVES, "both"):
        some = [one for one in runs if half in (one.draw.half, "both")]
        rules = Counter(f"{rule}{'!' if rule in one.critical else ''}" for one in some for rule in one.rules)
        rows.append(
            [
                half,
                str(len(some)),
                str(sum(bool(o.error) for o in well if half in (o.draw.half, "both"))),
                str(sum(bool(one.critical) for one in some)),
                str(sum(bool(one.rules) for one in some)),
                str(sum(bool(set(one.rules) - ABOUT_TIME) for one in some)),
                ", ".join(f"{rule} {number}" for rule, number in rules.most_common()),
            ]
        )
    return _table(rows)


def _reliability(held: Sequence[Judged]) -> list[str]:
    rows = [["confidence", "runs", "mean confidence", "right", "right, drawn"]]
    for number, (runs, sure, right) in enumerate(bins(one for one in held if one.is_found and not one.is_mild)):
        if runs:
            bar = "#" * round(WIDTH * right) + "." * (WIDTH - round(WIDTH * right))
            span = f"{number / 10:.1f} to {(number + 1) / 10:.1f}"
            rows.append([span, str(runs), f"{sure:.2f}", f"{right:.2f}", f"`{bar}`"])
    return _table(rows)


def _by_disease(ill: Sequence[Judged]) -> list[str]:
    rows = [["disease", "true cause", "runs", "mild", "found", "first cause", "one incident", "wrong first causes"]]
    for disease in DISEASES:
        mine = [one for one in ill if one.draw.disease == disease.name]
        runs = [one for one in mine if not one.error and not one.is_mild]
        wrong = Counter(one.cause for one in runs if not one.is_right and one.is_found)
        missed = sum(not one.is_found for one in runs)
        listed = [f"{cause} {number}" for cause, number in wrong.most_common() if cause != NO_CAUSE]
        listed += [f"unknown {wrong[NO_CAUSE]}"] if wrong[NO_CAUSE] else []
        listed += [f"not found {missed}"] if missed else []
        rows.append(
            [
                f"`{disease.name}`",
                ", ".join(f"`{cause}`" for cause in disease.causes),
                str(len(runs)),
                str(sum(one.is_mild for one in mine)),
                f"{sum(one.is_found for one in runs)}",
                f"{sum(one.is_right for one in runs)}",
                f"{sum(one.num_incidents == 1 for one in runs)}",
                ", ".join(listed),
            ]
        )
    return _table(rows)


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{100 * share:.0f} %"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = rows
    marks = ["---"] * len(head)
    return [f"| {' | '.join(row)} |" for row in (head, marks, *body)]
