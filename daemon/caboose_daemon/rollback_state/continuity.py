"""Checks after a rollback or a resume that the loss continues where it was when the state was saved.

Design
------
The ranks compare checksums, so the restored state is known to be the saved one. This checks that training continues
from it: the median of the first losses is compared with the median just before the snapshot, within the noise of the
run at that time. A remainder of up to a tenth of the original excess is accepted, since the data differs, but never
one at which triage would find that the loss is off its level. A rollback judged `broken` is judged again at every
step, since the loss may still settle; `ok` is final.
"""

import math
from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np

from caboose_daemon.rollback_state.loss_level import SURE, Losses, LossLevel, level_of
from caboose_daemon.rollback_state.triage import LOST_AFTER
from caboose_daemon.steps.columns import StepSummary

FIRST_STEPS = 20
"""Losses needed for a verdict."""
SHARE = 0.1
"""Accepted remainder, as a share of the excess at the time of the rollback."""

CheckState = Literal["checking", "ok", "broken", "unknown"]


class Continuity(msgspec.Struct, frozen=True, kw_only=True):
    """The check of one attempt."""

    attempt: int
    since: int
    """The step after which the attempt began."""
    origin: int
    """The step at which the state was saved."""
    decision: int = 0
    """Number of the rollback decision; 0 for a resume."""
    before: LossLevel | None = None
    excess: float = 0.0
    """Excess of the loss over its level at the time of the rollback."""
    state: CheckState = "checking"
    text: str = ""


def level_at(recent: Iterable[StepSummary], origin: int, attempt: int) -> LossLevel | None:
    """The loss level just before a state was saved, from earlier attempts; of repeated steps the last one counts."""
    losses = {s.step: s.loss for s in recent if s.attempt < attempt and s.step <= origin and s.loss is not None}
    return level_of(np.array([losses[step] for step in sorted(losses)], dtype=np.float64))


def update(check: Continuity, losses: Losses) -> Continuity:
    """The check after the attempt's losses so far."""
    if check.state in ("ok", "unknown") or (check.state == "broken" and not check.decision):
        return check
    if check.before is None:
        return _now(check, "unknown", "no losses are known from before the state was saved")
    what = f"rolled back to step {check.origin}" if check.decision else f"resumed at step {check.origin}"
    if losses.num_bad >= LOST_AFTER:
        return _now(check, "broken", f"{what}: the last {losses.num_bad} losses are not finite on any rank")
    finite = losses.values[np.isfinite(losses.values)]
    if len(finite) < FIRST_STEPS:
        return check
    level, now = check.before.level, float(np.median(finite[-FIRST_STEPS:]))
    error = math.hypot(check.before.error(FIRST_STEPS), check.before.error(min(16, check.before.num_steps)))
    remainder = min(SHARE * check.excess, SURE * check.before.noise)
    allowed = max(SURE * error, check.before.noise, remainder)
    figures = f"{now:.4g} against {level:.4g} before, tolerance {allowed:.2g}"
    if now - level <= allowed:
        return _now(check, "ok", f"{what}: loss continues from there, {figures}")
    return _now(check, "broken", f"{what}: loss does not continue from there, {figures}")


def _now(check: Continuity, state: CheckState, text: str) -> Continuity:
    return msgspec.structs.replace(check, state=state, text=text)
