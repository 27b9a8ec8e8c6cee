"""Silent overfitting, or an old checkpoint that is validated.

Design
------
Overfitting shows in what validation itself does: its loss is clearly above its own best, an accuracy falls, or the
distance to training grows while the data was seen often enough to be memorised. A distance that grows alone is not
enough: it grows in every run whose validation is flat. An old checkpoint shows in its stamp: the step of the evaluated
weights falls further and further behind the run.
"""

import numpy as np

from caboose_daemon.offline.hypotheses.hypothesis import Hypothesis, Result
from caboose_daemon.offline.hypotheses.stamps import lag, stamps
from caboose_daemon.offline.hypotheses.window import CLEAR, MIN_EVALUATIONS, Window, percent
from caboose_daemon.rules.parts.curve import trend
from caboose_daemon.rules.parts.metric_names import is_score

OFTEN = 3.0
"""Epochs from which samples can have been memorised."""
ABOVE_BEST = 0.02
FAR = 3.0
"""Standard errors above its best from which validation is worse: the best is chosen among many."""
MANY = 16
LAGS = 3.0
"""Distances of two evaluations by which a checkpoint may be older than the run."""
STAMP = "the step of the evaluated weights: monitor.validation(loss, checkpoint_step=step)"


def test(window: Window) -> Result:
    """The gap of training and validation, validation against its best, and the age of what is evaluated."""
    line, train = window.validation_line, window.train_line
    if line is None or train is None:
        return Result("undecided", (), (f"at least {MIN_EVALUATIONS} evaluations since step {window.start:,}",))
    evidence, is_worse = _against_best(window)
    evidence += _gap(window)
    old = behind(window)
    if old:
        return Result("supported", (old, *evidence))
    falling = _falling_scores(window)
    if line.rises(CLEAR) and (train.falls(CLEAR) or is_worse):
        return Result(
            "supported", (f"validation rises, {percent(line)}, while training changes by {percent(train)}", *evidence)
        )
    if falling:
        return Result("supported", (falling, *evidence))
    if is_worse and train.falls(CLEAR):
        return Result("supported", tuple(evidence))
    epochs = _epochs(window)
    could = train.falls(CLEAR) and not line.falls(CLEAR)
    if not train.falls(CLEAR):
        evidence.append("training loss does not fall: nothing is memorised meanwhile")
    if epochs is not None:
        evidence.append(f"training data was seen {epochs:.2g} times")
    if not could or (epochs is not None and epochs < OFTEN and stamps(window.evaluations)):
        return Result("refuted", tuple(evidence))
    missing = [] if stamps(window.evaluations) else [STAMP]
    missing += [] if epochs is not None else ["batch and dataset size: `for batch in monitor.watch(loader)`"]
    if not missing:
        missing = ["an accuracy beside the loss: monitor.validation(loss, accuracy=...)"]
    return Result("undecided", tuple(evidence), tuple(missing))


def _against_best(window: Window) -> tuple[list[str], bool]:
    """The mean of the last evaluations against the best mean of as many in a row; whether it is clearly worse.

    A single best evaluation is the luckiest of many: compared with that, every run would look worse than it was.
    """
    found = window.losses
    values = np.array([one.loss for one in found])
    means = np.convolve(values, np.ones(MIN_EVALUATIONS) / MIN_EVALUATIONS, mode="valid")
    now, best = float(means[-1]), int(means.argmin())
    error = float(np.std(np.diff(values[-MANY:]), ddof=1)) / (2 * MIN_EVALUATIONS) ** 0.5
    clear = max(FAR * 2**0.5 * error, ABOVE_BEST * abs(float(means[best])))
    is_worse = now - means[best] > clear and best + MIN_EVALUATIONS <= len(means) - 1
    around = f"{found[best].step:,} to {found[best + MIN_EVALUATIONS - 1].step:,}"
    text = f"validation loss {now:.4g} ± {error:.2g} now, best {means[best]:.4g} in steps {around}"
    return [text], bool(is_worse)


def _gap(window: Window) -> list[str]:
    pairs = [(one.loss - at, at) for one in window.recent_losses if (at := window.train_at(one.step)) is not None]
    if len(pairs) < MIN_EVALUATIONS:
        return []
    gaps = [gap for gap, _ in pairs]
    line = trend(gaps, remembers=True)
    how = "grows" if line.rises(CLEAR) else "shrinks" if line.falls(CLEAR) else "is steady"
    return [f"validation minus training loss {how}: {gaps[0]:.3g} to {gaps[-1]:.3g} since step {window.start:,}"]


def behind(window: Window) -> str:
    """How far the evaluated checkpoint has fallen behind the run; empty where it has not, or no stamp shows it."""
    found = lag(window.evaluations)
    if found is None:
        return ""
    name, now, first = found
    if now > first + LAGS * _apart(window):
        return f"{name} is {now:,.0f} steps behind the run, {first:,.0f} at first: an old checkpoint is validated"
    return ""


def _falling_scores(window: Window) -> str:
    names = {name for one in window.evaluations for name in one.others if is_score(name)}
    for name in sorted(names):
        values = [one.others[name] for one in window.evaluations if name in one.others and one.step >= window.start]
        if len(values) >= MIN_EVALUATIONS and (line := trend(values, remembers=True)).falls(CLEAR):
            return f"{name} falls by {percent(line)} since step {window.start:,}"
    return ""


def _apart(window: Window) -> float:
    """The usual distance of two evaluations, in steps."""
    return float(np.median(np.diff([one.step for one in window.losses])))


def _epochs(window: Window) -> float | None:
    """How often the training data was seen; None where its size is not known."""
    samples, size = window.run.samples_per_step, window.run.setting("dataset_length")
    return window.end * samples / size if samples and size else None


OVERFIT = Hypothesis(
    id="overfit_or_stale",
    title="silent overfitting, or an old checkpoint is validated",
    asks="validation against its best and against training, the age of what is evaluated",
    test=test,
    do="validate the newest checkpoint once by hand; if it is as bad, go back to the best one and regularise: more "
    "data, augmentation, dropout, weight decay",
    do_not="train on with the same data and rate, or judge by training loss",
    line="optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)",
)
