"""The numbers of the last steps beside what is usual for them: orientation for whoever reads a diagnosis.

Design
------
Usual ranges decide nothing: gradients scale with the loss, and many good runs are outside of them. They are shown next
to the numbers so that nobody has to look them up. What was not reported has no line.
"""

import math
from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis.case import Case, Floats

LAST = 20
"""Steps, or rows of a log."""
GRADIENT_NORM = (0.1, 10.0)
"""The usual total gradient norm."""
USUAL_UPDATE = 1e-3
"""The usual update of a weight matrix as a share of the weights."""
USUAL_RATES: tuple[tuple[str, float, float], ...] = (
    ("Adam", 1e-5, 3e-3),
    ("RMSprop", 1e-5, 1e-3),
    ("Adagrad", 1e-3, 1e-1),
    ("SGD", 1e-3, 3e-1),
)
"""By a part of the optimizer's name: peak rates that runs usually have, fine-tuning included."""


def recent_numbers(case: Case) -> Iterator[str]:
    """One line for each number that is known."""
    norms, losses = _last(case.curve("grad_norm")), _last(case.curve("loss"))
    if len(losses):
        yield f"loss in the last {len(losses)} steps: {_spread(losses)}"
    if len(norms):
        low, high = GRADIENT_NORM
        yield f"gradient norm in the last {len(norms)} steps: {_spread(norms)} ({low:g} to {high:g} is usual)"
    rate = case.lr_now
    if rate is not None:
        peak = case.lr_peak
        of_peak = f", {100 * rate / peak:.3g} % of its peak" if peak and rate < 0.99 * peak else ""
        yield f"learning rate {rate:.3g}{of_peak}{_usual_rate(case.optimizer)}"
    update = case.update_ratio
    if update is not None and math.isfinite(update):
        yield f"weights change by {100 * update:.2g} % per step ({100 * USUAL_UPDATE:g} % is usual)"


def _last(values: Floats) -> Floats:
    return values[np.isfinite(values)][-LAST:]


def _spread(values: Floats) -> str:
    return f"mean {np.mean(values):.4g}, std {np.std(values):.2g}, highest {np.max(values):.4g}"


def _usual_rate(optimizer: str) -> str:
    usual = next(((low, high) for name, low, high in USUAL_RATES if name in optimizer), None)
    return "" if usual is None else f" (peaks of {usual[0]:g} to {usual[1]:g} are usual for {optimizer})"
