"""The projection of a raised loss in a terminal: what it was, its level, the way back by waiting, and by going back."""

from collections.abc import Iterator, Sequence
from typing import Any

Json = dict[str, Any]
WIDE, TALL = 72, 12
BAND, LEVEL, PAST, LIKELY, BACK = "░", "·", "•", "o", "▼"


def chart(decision: Json) -> Iterator[str]:
    """The lines of the picture; nothing where no projection is known."""
    outlook = (decision.get("triage") or {}).get("outlook")
    if not outlook or not outlook["past"]:
        return
    rows, top, bottom = _grid(outlook, decision.get("boundary"), decision.get("target"))
    yield ""
    for place, row in enumerate(rows):
        label = f"{top:.4g}" if place == 0 else f"{bottom:.4g}" if place == TALL - 1 else ""
        yield f"{label:>10} |{''.join(row).rstrip()}"
    first, last = outlook["past_steps"][0], outlook["steps"][-1]
    yield f"{'':>10}  step {first:,}{f'step {last:,}':>{WIDE - len(f'step {first:,}')}}"
    yield f"{PAST} loss   {LEVEL} its level   {LIKELY} expected by waiting, {BAND} four in five   {BACK} by going back"
    cost = decision.get("cost")
    if cost:
        waiting = f"{_steps(cost['waiting'])} ({_steps(cost['least'])} to {_steps(cost['most'])})"
        yield f"steps of training lost: {waiting} by waiting, {_steps(cost['going_back'])} by going back"


def _grid(outlook: Json, boundary: int | None, target: int | None) -> tuple[list[list[str]], float, float]:
    first, last = int(outlook["past_steps"][0]), int(outlook["steps"][-1])
    past: list[float] = outlook["past"]
    top = max(*past, *outlook["likely"], min(max(outlook["high"]), 2.0 * max(past)))
    bottom = min(*past, *outlook["level"])
    rows = [[" "] * WIDE for _ in range(TALL)]

    def column(step: float) -> int:
        return round((step - first) / max(1, last - first) * (WIDE - 1))

    def line(loss: float) -> int:
        share = (loss - bottom) / max(top - bottom, 1e-12)
        return int(min(TALL - 1, max(0, round((1.0 - share) * (TALL - 1)))))

    for x in range(column(outlook["steps"][0]), WIDE):
        step = first + x / (WIDE - 1) * (last - first)
        high, low = (_at(outlook["steps"], outlook[name], step) for name in ("high", "low"))
        for y in range(line(high), line(low) + 1):
            rows[y][x] = BAND
        rows[line(_at(outlook["steps"], outlook["level"], step))][x] = LEVEL
        rows[line(_at(outlook["steps"], outlook["likely"], step))][x] = LIKELY
    for step, loss in zip(outlook["past_steps"], past, strict=True):
        rows[line(loss)][column(step)] = PAST
    if target is not None and boundary is not None and outlook["steps"][0] <= boundary <= last:
        x = column(boundary)
        begin = line(_at(outlook["steps"], outlook["likely"], boundary))
        for y in range(begin, line(_at(outlook["steps"], outlook["level"], boundary)) + 1):
            rows[y][x] = BACK
    return rows, top, bottom


def _at(steps: Sequence[int], values: Sequence[float], step: float) -> float:
    """The value at a step, on a straight line between its neighbours."""
    after = next((place for place, known in enumerate(steps) if known >= step), len(steps) - 1)
    if after == 0:
        return values[0]
    before = after - 1
    share = (step - steps[before]) / max(1, steps[after] - steps[before])
    return values[before] + min(1.0, share) * (values[after] - values[before])


def _steps(value: float | str) -> str:
    return f"{value:.0f}" if isinstance(value, int | float) else "all"
