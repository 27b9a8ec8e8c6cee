"""A validation pipeline that returns the same number: bit-equal results, an old result, a stamp that does not move.

Design
------
A real evaluation of moving weights gives another number in each of its digits. Equal numbers in a row are a cached
result, a copy of the weights that is not updated, or a loader that gives nothing. Two can be chance where a log rounds;
so it is three, and more where the numbers have few digits. A result that returns in a cycle is as bad. Fields that name
the evaluated step (`checkpoint_step`, `model_step`, ...) must move with the run.
"""

from collections.abc import Sequence

import numpy as np

from caboose_daemon.offline.hypotheses.hypothesis import Hypothesis, Result
from caboose_daemon.offline.hypotheses.stamps import moving, stamps
from caboose_daemon.offline.hypotheses.window import Evaluation, Window

MIN_EQUAL = 3
FEW_DIGITS = 4
"""Significant digits up to which equality may come from rounding."""
MANY_EQUAL = 8
"""Equal results in a row that no rounding explains, if training moved by more than the last digit."""
OVERDUE = 3.0
"""Usual distances of two evaluations after which one is overdue."""


def test(window: Window) -> Result:
    """Bit-equal or stale results, and a step stamp that does not move."""
    found = window.losses
    if len(found) < MIN_EQUAL:
        missing = f"at least {MIN_EQUAL} evaluations (monitor.validation(loss)); {len(found)} are known"
        return Result("undecided", (), (missing,))
    equal = _equal_at_the_end(found)
    moved = _moved(window, found[-equal].step)
    last = f"{found[-1].loss:.8g}"
    if equal >= MIN_EQUAL:
        steps = f"from step {found[-equal].step:,} to {found[-1].step:,}"
        text = f"the last {equal} evaluations are all exactly {last}, {steps}"
        if _digits([one.loss for one in found]) > FEW_DIGITS or (equal >= MANY_EQUAL and moved > _last_digit(found)):
            return Result("supported", (text, f"training loss changed by {moved:.2g} meanwhile"))
        return Result("undecided", (text,), ("more digits: the log rounds, and equal may be chance",))
    period = _period([one.loss for one in found])
    if period:
        return Result("supported", (f"results repeat exactly, every {period} evaluations",))
    still = [f"{name} = {value:g}" for name, value, is_moving in moving(window.evaluations) if not is_moving]
    if still:
        steps = f"while the run went from step {found[-MIN_EQUAL].step:,} to {found[-1].step:,}"
        return Result("supported", (f"the step stamp does not move: {', '.join(still)}, {steps}",))
    overdue = _overdue(window, found)
    if overdue:
        return Result("supported", (overdue,))
    distinct = len({one.loss for one in window.recent_losses})
    evidence = [f"{distinct} different results in {len(window.recent_losses)} evaluations, the last {last}"]
    evidence += [f"{name} moves with the run" for name in stamps(window.evaluations)]
    return Result("refuted", tuple(evidence))


def _equal_at_the_end(found: Sequence[Evaluation]) -> int:
    """Evaluations with the same loss as the last one, in a row."""
    num = 0
    for one in reversed(found):
        if one.loss != found[-1].loss:
            break
        num += 1
    return num


def _moved(window: Window, since: int) -> float:
    """How far the training loss moved since a step."""
    then, now = window.train_at(since), window.train_at(window.end)
    return abs(now - then) if then is not None and now is not None else 0.0


def _digits(values: Sequence[float]) -> int:
    """The most significant digits of any of these numbers."""
    return max(len(f"{abs(value):.15g}".partition("e")[0].replace(".", "").strip("0")) for value in values)


def _last_digit(found: Sequence[Evaluation]) -> float:
    """The size of the last digit that is written."""
    texts = [f"{one.loss:.15g}" for one in found]
    return float(10.0 ** -max(len(text.partition(".")[2]) for text in texts))


def _period(values: Sequence[float]) -> int:
    """The length of a cycle in which results return exactly, at least three times; 0 for none."""
    for period in range(2, len(values) // MIN_EQUAL + 1):
        last = values[-MIN_EQUAL * period :]
        if len(set(last)) > 1 and all(a == b for a, b in zip(last, last[period:], strict=False)):
            return period
    return 0


def _overdue(window: Window, found: Sequence[Evaluation]) -> str:
    usual = float(np.median(np.diff([one.step for one in found])))
    since = window.end - found[-1].step
    if usual > 0 and since > OVERDUE * usual:
        return f"the last result is {since:,} steps old; evaluations were {usual:,.0f} steps apart"
    return ""


SAME = Hypothesis(
    id="same_number",
    title="validation returns the same number",
    asks="bit-equal or stale results, a step stamp that does not move",
    test=test,
    do="evaluate the model that is trained, not a copy or a cached result; report the step of the evaluated weights",
    do_not="tune anything by this number, or stop early on it: it does not depend on the run",
    line="monitor.validation(loss, checkpoint_step=step)  # the step of the weights that were evaluated",
)
