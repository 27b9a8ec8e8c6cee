"""Checks after a rollback or a resume that the loss goes on where it was when the state was taken.

Design
------
What was restored is known to be that state (the ranks compare checksums); what is asked here is whether training goes
on from it. The first losses are compared with those just before the snapshot: medians of both, within the noise that
the run had then. A little above is fine where the trouble was far worse: the data is other data. A rollback that is
judged not to continue is looked at again at every step, since it may still settle; what continues is settled.
"""

import math
from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np

from caboose_daemon.rollback_state.triage import HOPELESS, SURE, Losses, LossLevel, level_of
from caboose_daemon.steps.columns import StepSummary

FIRST_STEPS = 20
"""Losses after which it is judged."""
SHARE = 0.1
"""Of how far the trouble was above the level, what may remain."""

CheckState = Literal["checking", "ok", "broken", "unknown"]


class Continuity(msgspec.Struct, frozen=True, kw_only=True):
    """One check: of which attempt, against what, and how it stands."""

    attempt: int
    since: int
    """The step after which the attempt began."""
    origin: int
    """The step at which the state was taken."""
    decision: int = 0
    """The rollback it follows; 0 for a resume."""
    before: LossLevel | None = None
    trouble: float = 0.0
    """How far above its level the loss was when it was rolled back."""
    state: CheckState = "checking"
    text: str = ""


def level_at(recent: Iterable[StepSummary], origin: int, attempt: int) -> LossLevel | None:
    """The level just before a state was taken, by the attempts before this one; of repeated steps the last counts."""
    losses = {s.step: s.loss for s in recent if s.attempt < attempt and s.step <= origin and s.loss is not None}
    return level_of(np.array([losses[step] for step in sorted(losses)], dtype=np.float64))


def look(check: Continuity, losses: Losses) -> Continuity:
    """The check in the light of the attempt's losses so far."""
    if check.state in ("ok", "unknown") or (check.state == "broken" and not check.decision):
        return check
    if check.before is None:
        return _now(check, "unknown", "no losses are remembered from before the state was taken")
    what = f"rolled back to step {check.origin}" if check.decision else f"resumed at step {check.origin}"
    if losses.num_bad >= HOPELESS:
        return _now(check, "broken", f"{what}, and the last {losses.num_bad} losses are not finite on any rank")
    finite = losses.values[np.isfinite(losses.values)]
    if len(finite) < FIRST_STEPS:
        return check
    level, now = check.before.level, float(np.median(finite[-FIRST_STEPS:]))
    error = math.hypot(check.before.error(FIRST_STEPS), check.before.error(min(16, check.before.num_steps)))
    allowed = max(SURE * error, check.before.noise, SHARE * check.trouble)
    figures = f"{now:.4g} against {level:.4g} before it, {allowed:.2g} allowed"
    if now - level <= allowed:
        return _now(check, "ok", f"{what}, and the loss goes on from there: {figures}")
    return _now(check, "broken", f"{what}, and the loss does not go on from there: {figures}")


def _now(check: Continuity, state: CheckState, text: str) -> Continuity:
    return msgspec.structs.replace(check, state=state, text=text)
