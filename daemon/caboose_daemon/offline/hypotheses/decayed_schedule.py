"""A schedule that has decayed below effect: the weights hardly move any more.

Design
------
The update-to-weight ratio is what the rate does to the weights, whatever the optimizer. Its recent median is
compared with the highest level before the window: a schedule may have decayed long ago. Without it (a log has
none), the rate alone is compared with its peak, and decides only where it is far from the limits. A planned end, within
the last tenth of the known total, is named as such.
"""

import numpy as np

from caboose_daemon.format import amount
from caboose_daemon.offline.hypotheses.hypothesis import Hypothesis, Result
from caboose_daemon.offline.hypotheses.window import Window

GONE, ALIVE = 0.1, 0.3
"""Shares of its history below which the updates have no effect, and above which they have."""
LR_GONE = 0.02
"""Share of its peak below which a rate alone has no effect."""
PLANNED_END = 0.9
MIN_SAMPLES = 8
MIN_RECENT = 2
"""Samples within the window: older ones say nothing about now."""
BLOCKS = 4
"""Equal parts of the earlier samples, whose medians are the history."""
USUAL = "healthy runs have about 1e-3"
TOTALS = ("total_steps", "num_training_steps", "max_steps")


def test(window: Window) -> Result:
    """The update-to-weight ratio against its history, and the rate against its peak."""
    evidence = []
    _, rates = window.run.curve("lr")
    lr = float(rates[-1] / rates.max()) if len(rates) and rates.max() > 0 else None
    if lr is not None:
        evidence.append(f"learning rate {rates[-1]:.3g}, {amount(100 * lr)} % of its peak {rates.max():.3g}")
    earlier = [ratio for step, ratio in window.run.updates if step < window.start]
    recent = [ratio for step, ratio in window.run.updates if step >= window.start]
    total = next((value for name in TOTALS if (value := window.run.setting(name))), None)
    if total is not None:
        is_end = window.end > PLANNED_END * total
        evidence.append(f"step {window.end:,} of {total:,.0f} planned{': the planned end' if is_end else ''}")
    if len(earlier) >= MIN_SAMPLES and len(recent) >= MIN_RECENT:
        then = max(float(np.median(part)) for part in np.array_split(earlier, BLOCKS))
        now = float(np.median(recent[-((len(recent) + 1) // 2) :]))
        share = now / then if then > 0 else 0.0
        evidence.append(f"update-to-weight ratio {now:.2g}, {then:.2g} at its highest ({share:.2g}x); {USUAL}")
        if share < GONE and (lr is None or lr < ALIVE):
            return Result("supported", tuple(evidence))
        if share >= ALIVE:
            return Result("refuted", tuple(evidence))
        return Result(
            "undecided", tuple(evidence), (f"a clearer ratio: {GONE:g}x and less is gone, {ALIVE:g}x is not",)
        )
    if lr is None:
        return Result(
            "undecided", tuple(evidence), ("the learning rate and the update-to-weight ratio: attach the agent",)
        )
    if lr >= ALIVE:
        return Result("refuted", tuple(evidence))
    if lr < LR_GONE:
        return Result("supported", tuple(evidence))
    return Result("undecided", tuple(evidence), ("the update-to-weight ratio: attach the agent",))


DECAYED = Hypothesis(
    id="decayed_schedule",
    title="schedule decayed below effect",
    asks="update-to-weight ratio against its history",
    test=test,
    do="restart from the last good checkpoint with the schedule stretched over the steps that are left, at a third of "
    "the peak rate",
    do_not="train longer at this rate, or change the model: at this rate none learns",
    line="scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps_left)  # stepped per batch",
)
