"""What several causes read from a case's curves: the first steps, growth before a NaN, and the shape of a rise.

Design
------
A run that is stuck because it blew up at the start looks, at its end, like one that never moved: small gradients, small
updates, a flat loss. Only the first steps show the difference. They are read from the rule that follows them, or from
the curves where those still reach back to the start; the answer is None where neither does.

Rules know a level only after about twenty steps. A run that breaks earlier has none, and only `non_finite` reports. Its
curves are enough: a number that overflows grows step by step, and an undefined one (a logarithm of zero, a NaN in a
batch) comes without warning. Two steps can show growth, so the test is strict: the last value must be ten times above
everything in the first half of the curve. A loss that has fallen far has not grown because one batch was worse. The
slope next to a logarithm's singularity is steep for one step, so the norm of the step before the last must have grown
too, where there is one.

Replicas have the same weights, so what breaks the weights raises every rank's loss. If the highest rises and the lowest
stays where it was, it is that rank's data; with two ranks, no majority shows which rank is the outlier, but this does.

A rise is gradual or sudden. The curve is cut into a dozen parts, and their medians are fitted by a straight line and by
one step. The better fit counts if it is better by a margin. Single slow steps and short pauses change neither.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.rules.parts.blown_up_start import BEYOND_NOISE, CALM, NOTHING_LEARNED, is_back
from caboose_daemon.steps.view import MOVING_OBJECTIVE

EARLY = 300
"""Points that count as the start."""
HAD_LEARNED = 0.5
"""Share of its first loss below which a run has learned: a later jump is not that of its start."""
JUMPED = 1.5
"""Ratio to the first loss that is a jump."""
MIN_POINTS = 100
LATELY = 50
FADED = 10.0
"""Early gradient norm over the later one, above which the gradient has vanished."""
GREW = 10.0
HUGE_NORM = 1e3
"""A first gradient norm above this has grown already: usual ones are 0.01 to 100."""
PARTS = 12
MARGIN = 0.05
"""Difference in explained variance that decides between line and step: each explains 3/4 of the other."""
MIN_FACTOR = 1.1


PARTED = 3.0
"""Highest loss over the usual loss, above which a rank has parted from the others ..."""
STAYED = 1.5
"""... if the lowest is below this ratio."""
PARTED_STEPS = 60
"""Steps since the onset that show it, of which the first few are enough: what the odd data does to the weights raises
the loss of all ranks soon."""
MOST = 0.7
MIN_PARTED = 3
LEFT = 1.5
"""Validation loss over that before, above which it has not come back ..."""
LEFT_FOR = 2
"""... at so many evaluations."""


class Parted(NamedTuple):
    """Ranks whose losses were alike before the onset and are not since."""

    usual: float
    low: float
    high: float
    num_steps: int


class Jump(NamedTuple):
    """A loss that jumped in the first steps."""

    first: float
    peak: float


class Fading(NamedTuple):
    """A gradient norm that was high in the first steps and is low now."""

    then: float
    now: float


class Growth(NamedTuple):
    """How a curve reached its last finite value, as text, and by which factor."""

    text: str
    factor: float


class Rise(NamedTuple):
    """How a curve rose from its first level to its last."""

    factor: float
    """Median of the last part over that of the first."""
    is_gradual: bool
    is_jump: bool


def has_first_step(case: Case) -> bool:
    """Whether the curves reach back to the first step of the run."""
    return bool(len(case.steps)) and case.steps[0] <= 1 + case.gap and "resume" not in case.incident.regimes


def early_jump(case: Case) -> Jump | None:
    """A jump of the loss soon after the start: from the rule, or from a curve that learned nothing since."""
    first, peak = case.most("lr_too_high", "first"), case.most("lr_too_high", "thrown_to")
    if first is not None and peak is not None and case.came_first("lr_too_high", 0):
        return Jump(first, peak)
    if not has_first_step(case):
        return None
    losses = case.curve("loss")
    losses = losses[np.isfinite(losses)]
    if len(losses) < MIN_POINTS or losses[0] <= 0:
        return None
    second, peak = np.sort(losses[:EARLY])[-2:].tolist()
    level, scatter = float(np.mean(losses[-LATELY:])), float(np.std(losses[-LATELY:]))
    if second < JUMPED * losses[0] or level < NOTHING_LEARNED * losses[0]:
        return None
    before = losses[: int(np.argmax(losses >= JUMPED * losses[0]))]
    if len(before) >= CALM and float(np.median(before[-CALM:])) < HAD_LEARNED * losses[0]:
        return None  # it had learned by then: whatever broke it was not its start
    has_recovered = len(before) >= CALM and is_back(level, scatter, float(np.median(before[-CALM:])))
    return None if has_recovered or second - level < BEYOND_NOISE * scatter else Jump(float(losses[0]), peak)


FAR_OFF = 3.0
"""First loss over chance that no usual initialisation and no usual input gives."""


def first_loss(case: Case) -> float | None:
    """The first loss that is kept; None where there is none."""
    losses = case.curve("loss")
    losses = losses[np.isfinite(losses)]
    return float(losses[0]) if len(losses) else None


def first_excess(case: Case) -> float | None:
    """The loss of the untrained model over that of a guess; None where either is not known."""
    chance = case.chance
    if chance is None or chance <= 0 or not has_first_step(case):
        return None
    first = case.curve("loss")[:1]
    return None if not len(first) or np.isnan(first[0]) else float(first[0]) / chance


QUICK, SLOW = 0.15, 0.35
"""Shares of a run by which half of its fall is over: of one that learns, and of one that memorises without a rule."""
FALL_PARTS = 40
LEAST_FALL = 0.1
"""Fall of a loss, as a share of its first level, of which a shape is known."""


def half_fall(case: Case) -> float | None:
    """Share of the run after which half of the loss's fall was over; None where it fell too little, or began unseen.

    What holds for all samples is learned at first, and fast. Samples without a rule are learned one by one, and late.
    """
    losses = case.curve("loss")
    losses = losses[np.isfinite(losses)]
    if not has_first_step(case) or len(losses) < FALL_PARTS:
        return None
    means = [float(part.mean()) for part in np.array_split(losses, FALL_PARTS)]
    first, last = float(np.median(losses[:3])), float(np.mean(means[-4:]))
    if first - last < LEAST_FALL * abs(first):
        return None
    return next(number for number, mean in enumerate(means, 1) if mean <= (first + last) / 2) / FALL_PARTS


def faded_gradient(case: Case) -> Fading | None:
    """A gradient norm far below what at least one early step in ten reached."""
    norms = case.curve("grad_norm")
    norms = norms[np.isfinite(norms)]
    if not has_first_step(case) or len(norms) < MIN_POINTS:
        return None
    then, now = float(np.quantile(norms[:MIN_POINTS], 0.9)), float(np.median(norms[-LATELY:]))
    return Fading(then, now) if then > FADED * now else None


def growth_before_nan(case: Case) -> Growth | None:
    """How loss or norm grew before the first number that was not finite; None where neither did, or all are finite."""
    broke = min((m.first.onset_step for m in case.incident.episodes if m.rule == "non_finite"), default=None)
    if broke is None:
        return None
    found = (_growth(case, name, what, broke) for name, what in (("loss", "loss"), ("grad_norm", "gradient norm")))
    return max((growth for growth in found if growth is not None), key=lambda growth: growth.factor, default=None)


def _growth(case: Case, name: str, what: str, broke: int) -> Growth | None:
    values = case.curve(name)[case.steps < broke]
    values = values[np.isfinite(values)]
    if len(values) == 1 and name == "grad_norm" and has_first_step(case) and values[0] > HUGE_NORM:
        return Growth(f"{what} {values[0]:.3g} at the first step already", values[0] / HUGE_NORM)
    if len(values) < 2:
        return None
    calm = float(values[: (len(values) + 1) // 2].max())
    last = float(values[-2:].min() if name == "grad_norm" and len(values) > 3 else values[-1])
    if calm <= 0 or last < GREW * calm:
        return None
    return Growth(f"{what} grew from {calm:.3g} to {values[-1]:.3g} before the first NaN or infinity", last / calm)


def rise(values: NDArray[np.float64]) -> Rise | None:
    """The rise over a dozen parts of equal length; None where the curve is too short, or does not rise."""
    values = values[np.isfinite(values) & (values > 0)]
    if len(values) < 5 * PARTS:
        return None
    levels = np.array([float(np.median(part)) for part in np.array_split(values, PARTS)])
    factor = float(levels[-1] / levels[0])
    if factor < MIN_FACTOR:
        return None
    line = float(np.corrcoef(np.arange(PARTS), levels)[0, 1]) ** 2
    step = max(_explained(levels, place) for place in range(1, PARTS))
    return Rise(factor, is_gradual=line > step + MARGIN, is_jump=step > line + MARGIN)


def _explained(levels: NDArray[np.float64], place: int) -> float:
    """Share of the variance that a step at this place explains."""
    before, after = levels[:place], levels[place:]
    rest = float(np.sum((before - before.mean()) ** 2) + np.sum((after - after.mean()) ** 2))
    return 1.0 - rest / float(np.sum((levels - levels.mean()) ** 2))


MIN_CALM = 20
THROWN, STILL_CALM = 10.0, 1.5
"""Ratios to the usual gradient norm: of one that throws a model, and up to which those before it are usual."""


def ranks_parted(case: Case) -> Parted | None:
    """The losses of the ranks, if one rose since the onset while another stayed; None if not, or not known."""
    usual = case.before("loss_max")
    low, high = case.since("loss_min")[:PARTED_STEPS], case.since("loss_max")[:PARTED_STEPS]
    if case.world < 2 or len(usual) < MIN_PARTED or len(low) < MIN_PARTED or len(low) != len(high):
        return None
    level = float(np.median(usual))
    is_parted = (high > PARTED * level) & (low < STAYED * level)
    if not level > 0 or not (is_parted.mean() >= MOST or is_parted[: MIN_PARTED + 1].sum() >= MIN_PARTED):
        return None
    return Parted(level, float(np.median(low[is_parted])), float(np.median(high[is_parted])), int(is_parted.sum()))


def validation_left(case: Case) -> tuple[float, float] | None:
    """The validation loss at the last evaluation before the onset, and since, where it stays far above it.

    None where it does not, or the training loss is not back: then both rose alike.
    """
    if MOVING_OBJECTIVE in case.visible:
        return None  # its data always change
    level, now = case.before("loss"), case.since("loss")[-LATELY:]
    before = [found.loss for step, found in case.validations if step < case.onset]
    since = [found.loss for step, found in case.validations if step >= case.onset]
    if len(level) < MIN_PARTED or len(now) < LATELY // 2 or not before or len(since) < LEFT_FOR:
        return None
    is_back = float(np.median(now)) < STAYED * float(np.median(level))
    return (before[-1], min(since)) if is_back and min(since) > LEFT * before[-1] > 0 else None


def gradient_out_of_calm(case: Case) -> float | None:
    """How many times the usual norm the gradient was at the onset, where it had been usual until the step before.

    None where it was not `THROWN` times as large at once, or its optimizer divides gradients by their size.
    """
    before, since = case.before("grad_norm"), case.since("grad_norm")[:2]
    if "SGD" not in case.optimizer or len(before) < MIN_CALM or not len(since):
        return None
    usual = float(np.median(before))
    ratio = float(since.max()) / max(usual, 1e-30)
    return ratio if ratio >= THROWN and float(np.median(before[-5:])) < STILL_CALM * usual else None
