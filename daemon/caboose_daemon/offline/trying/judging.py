"""Whether a tried change helped: the same steps with and without it, compared step by step.

Design
------
Both sides train on the same batches in the same order, so the difference of their losses at one step has little of the
noise of batches. Its level over the later part, with the error of correlated values (see `verifying/stretch`), decides:
better or worse beyond chance and by more than `MARGIN`, the same within `MARGIN`, or unknown. Validation, where the
parts have it, may turn a gain into `mixed`. A side that is not finite has lost. A short trial has its limits, and the
caveats name them: a lower rate lowers the loss at once, as it has less noise, and may still be slower in the end.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from caboose_daemon.format import amount
from caboose_daemon.offline.verifying.quantity import CONFIDENCE
from caboose_daemon.offline.verifying.stretch import Floats, measure, student
from caboose_daemon.offline.verifying.verdict import MARGINS

Json = dict[str, Any]
Helped = Literal["helped", "hurt", "same", "mixed", "unknown"]
MARGIN = MARGINS["loss"]
SETTLING = 0.3
"""The first part of the trial, which is not compared: the optimizer's averages adapt."""
LEAST = 10
WIDE = 10.0


@dataclass(frozen=True)
class TrialVerdict:
    """The verdict; changes are shares of the loss without the change."""

    verdict: Helped
    why: str
    loss_without: float | None = None
    loss_with: float | None = None
    lowest: float | None = None
    """Bounds of the change."""
    highest: float | None = None
    caveats: tuple[str, ...] = ()

    def as_object(self) -> Json:
        """For programs."""
        return {
            "verdict": self.verdict,
            "why": self.why,
            "loss_without": self.loss_without,
            "loss_with": self.loss_with,
            "relative_change": None if self.lowest is None else [self.lowest, self.highest],
            "caveats": list(self.caveats),
        }


def judge(answer: Json) -> TrialVerdict:
    """The verdict on what `caboose.trying.command` printed."""
    without, having = answer["without"], answer["with"]
    broke = (without["broke_at"], having["broke_at"])
    if broke[0] is not None or broke[1] is not None:
        return _of_broken(*broke)
    begin = int(SETTLING * len(without["losses"]))
    plain = np.array(without["losses"][begin:], dtype=np.float64)
    changed = np.array(having["losses"][begin:], dtype=np.float64)
    apart = changed - plain
    if len(apart) < LEAST:
        return TrialVerdict("unknown", f"{len(apart)} steps are compared; {LEAST} are needed: give more --steps")
    level = float(plain.mean())
    scale = max(abs(level), 1e-12)
    if not apart.any():
        return TrialVerdict(
            "same", "the losses are equal to the last digit: the change has no effect", level, level, 0, 0
        )
    lowest, highest = _bounds(np.log(changed / plain)) if _is_wide(plain, changed) else _bounds(apart / scale)
    if _is_wide(plain, changed):
        lowest, highest = math.expm1(lowest), math.expm1(highest)
    verdict, why = _compared(lowest, highest)
    verdict, why = _with_validation(verdict, why, without["validation"], having["validation"])
    caveats = tuple(_caveats(answer, verdict))
    return TrialVerdict(verdict, why, level, float(changed.mean()), lowest, highest, caveats)


def _is_wide(plain: Floats, changed: Floats) -> bool:
    """Whether the losses span orders of magnitude, so that their ratio is compared and not their difference."""
    both = np.concatenate([plain, changed])
    return bool(both.min() > 0 and both.max() > WIDE * both.min())


def _bounds(values: Floats) -> tuple[float, float]:
    """The interval of the values' level."""
    line = measure(np.arange(len(values), dtype=np.float64), values)
    reach = student(CONFIDENCE, line.num_independent - 2) * line.level_error
    return line.level - reach, line.level + reach


def _of_broken(without: int | None, having: int | None) -> TrialVerdict:
    if having is None:
        return TrialVerdict("helped", f"without the change the loss is not finite at step {without} of the trial")
    if without is None:
        return TrialVerdict("hurt", f"with the change the loss is not finite at step {having} of the trial")
    return TrialVerdict("same", f"not finite on both sides, at steps {without} and {having} of the trial")


def _compared(lowest: float, highest: float) -> tuple[Helped, str]:
    change = f"loss changes by {_percent(lowest)} to {_percent(highest)}"
    if lowest >= -MARGIN and highest <= MARGIN:
        return "same", f"{change}: less than {100 * MARGIN:g} % either way"
    if highest < 0:
        return "helped", change
    if lowest > 0:
        return "hurt", change
    return "unknown", f"{change}: chance alone may explain it; give more --steps"


def _percent(share: float) -> str:
    return f"{'+' if share > 0 else ''}{amount(100 * share, 2)} %"


def _with_validation(verdict: Helped, why: str, without: float | None, having: float | None) -> tuple[Helped, str]:
    if without is None or having is None or not math.isfinite(without) or without == 0:
        return verdict, why
    change = (having - without) / abs(without)
    text = f"{why}; validation loss {without:.4g} without, {having:.4g} with"
    is_opposed = (verdict == "helped" and change > MARGIN) or (verdict == "hurt" and change < -MARGIN)
    return ("mixed" if is_opposed else verdict), text


def _caveats(answer: Json, verdict: Helped) -> list[str]:
    found = []
    num = len(answer["without"]["losses"])
    if verdict == "helped" and _is_lower(answer["with"]["changes"]):
        found.append("a lower rate lowers the loss at once, as it has less noise, and may be slower in the end")
    found.append(f"{num} steps: what shows only later, such as overfitting, is not in it")
    if answer["without"]["start"] == "new weights":
        found.append("started from new weights, not from a checkpoint: give --checkpoint to try it where the run is")
    return found


def _is_lower(changes: list[str]) -> bool:
    for text in changes:
        words = text.split()
        if words[0] == "lr":
            return float(words[3]) < float(words[1])
    return False
