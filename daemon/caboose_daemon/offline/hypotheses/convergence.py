"""Normal convergence: training follows its expected curve, and its slow fall would not show in validation yet.

Design
------
Two tests. The training loss is where a power law through the first part of the run expects it. And the fall of the
training loss in the window, as a share, is compared with what validation can resolve: if validation fell by the same
share and its noise hid it, flat means nothing. If its noise is so small that the fall would show, and it does not, then
validation does not follow training, and this is not normal convergence.
"""

from caboose_daemon.offline.hypotheses import overfit_or_stale, same_number
from caboose_daemon.offline.hypotheses.expected_curve import expected
from caboose_daemon.offline.hypotheses.hypothesis import Hypothesis, Result
from caboose_daemon.offline.hypotheses.window import CLEAR, Window, percent
from caboose_daemon.rules.parts.curve import Trend

FAR = 3.0
"""Errors above the expected range from which training has stalled."""


def test(window: Window) -> Result:
    """Trend against noise, and the distance to the expected curve."""
    train, validation = window.train_line, window.validation_line
    if train is None:
        return Result("undecided", (), ("at least 128 training losses",))
    evidence = [f"training loss changed by {percent(train)} since step {window.start:,}, level {train.level:.4g}"]
    curve = expected(*window.train)
    if curve is not None:
        place = f"expected {curve.lowest:.4g} to {curve.highest:.4g} from the first 60 % of the run"
        evidence.append(f"training loss is {curve.measured:.4g} ± {curve.error:.2g} at the end, {place}")
    if curve is not None and curve.above > FAR and not train.falls(CLEAR):
        return Result("refuted", (*evidence, "training stopped short of its expected curve"))
    if train.rises(CLEAR):
        return Result("refuted", (*evidence, "training loss rises"))
    if validation is None:
        missing = f"at least 4 evaluations since step {window.start:,} (monitor.validation(loss))"
        return Result("undecided", tuple(evidence), (missing,))
    evidence.append(f"validation loss changed by {percent(validation)} in {len(window.recent_losses)} evaluations")
    if curve is None:
        return Result("undecided", tuple(evidence), ("a longer run: its expected curve is not known yet",))
    return _compared(window, train, validation, evidence)


def _compared(window: Window, train: Trend, validation: Trend, evidence: list[str]) -> Result:
    is_old = same_number.test(window).verdict == "supported" or bool(overfit_or_stale.behind(window))
    if is_old:
        return Result("refuted", (*evidence, "validation does not measure this run: its noise proves nothing"))
    if validation.rises(CLEAR):
        return Result("refuted", (*evidence, "validation rises while training does not"))
    seen = CLEAR * validation.relative_error
    expected_fall = -min(train.relative, 0.0)
    if expected_fall <= seen:
        text = f"a fall like training's ({100 * expected_fall:.2g} %) is within validation's noise ({100 * seen:.2g} %)"
        return Result("supported", (*evidence, text))
    if validation.falls(CLEAR):
        return Result("supported", (*evidence, "validation falls too, slowly"))
    text = f"validation would show a fall of {100 * seen:.2g} %; training fell by {100 * expected_fall:.2g} %"
    return Result("refuted", (*evidence, text))


NORMAL = Hypothesis(
    id="normal_convergence",
    title="normal convergence",
    asks="trend against noise, distance to the expected curve",
    test=test,
    do="go on with the schedule as planned; evaluate on more samples, or average several evaluations, to see the fall",
    do_not="change the rate or the model: nothing is broken, and a change restarts the waiting",
    line="monitor.validation(sum(losses) / len(losses))  # the mean over more batches has less noise",
)
