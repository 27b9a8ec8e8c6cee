"""A saddle or a flat region: the gradient is small though the loss is not at a minimum.

Design
------
The gradient norm is compared with the run's own history: its median in the window over its median in the first
quarter. A norm near its history is no flat region. A small norm alone does not tell a saddle from a minimum: the
smallest eigenvalue of the Hessian on a checkpoint does, and decides wherever it was measured.
"""

import numpy as np

from caboose_daemon.offline.hypotheses.hypothesis import Hypothesis, Result
from caboose_daemon.offline.hypotheses.window import Window

HEALTHY, SMALL = 0.3, 0.1
"""Shares of its history from which a norm is no sign of a flat region, and below which it is one."""
MIN_NORMS = 20
USUAL = "usual norms are 0.1 to 10"
HOW = "the smallest Hessian eigenvalue: --parts script.py:parts --checkpoint FILE"


def test(window: Window) -> Result:
    """The gradient norm, and the smallest eigenvalue where a checkpoint is given."""
    share, evidence = _norms(window)
    found = window.curvature
    if found is not None:
        text = f"Hessian at the checkpoint (loss {found.loss:.4g}): smallest eigenvalue {found.lowest:.3g}, largest"
        evidence.append(f"{text} {found.top:.3g}")
        if found.is_saddle:
            return Result("supported", (*evidence, "the loss curves down along a direction: a saddle"))
        if found.is_no_saddle:
            return Result("refuted", (*evidence, "no direction curves down clearly: a minimum or a valley"))
        return Result("undecided", tuple(evidence), (f"settled eigenvalues: the residual is {found.residual:.2g}",))
    if share is None:
        return Result("undecided", tuple(evidence), ("gradient norms: attach the agent", HOW))
    if share >= HEALTHY:
        return Result("refuted", tuple(evidence))
    return Result("undecided", (*evidence, "a minimum and a saddle both have small gradients"), (HOW,))


def _norms(window: Window) -> tuple[float | None, list[str]]:
    _, norms = window.run.curve("grad_norm")
    recent = window.part("grad_norm")
    if len(recent) < MIN_NORMS:
        return None, []
    early = norms[: max(MIN_NORMS, len(norms) // 4)]
    then, now = float(np.median(early)), float(np.median(recent))
    share = now / then if then > 0 else 0.0
    how = "healthy" if share >= HEALTHY else "small" if share < SMALL else "lower"
    return share, [
        f"gradient norm {now:.3g} since step {window.start:,}, {then:.3g} at first: {how} ({share:.2g}x; {USUAL})"
    ]


FLAT = Hypothesis(
    id="flat_region",
    title="saddle or flat region",
    asks="gradient norm against its history; smallest Hessian eigenvalue on a checkpoint",
    test=test,
    do="raise the rate to three times for some hundred steps, or use a cyclical rate or momentum",
    do_not="stop the run, or lower the rate: both leave it at the saddle",
    line="scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=lr, max_lr=3 * lr, step_size_up=500, "
    "cycle_momentum=False)",
)
