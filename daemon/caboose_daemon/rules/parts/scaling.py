"""Detects the steps that a gradient scaler skipped."""

from caboose_daemon.steps.aligned import AlignedStep
from caboose_wire import Scaler


class SkippedSteps:
    """Follows a scaler; a fused optimizer does not report a skipped step, but the scale falls at it."""

    def __init__(self) -> None:
        self._last: Scaler | None = None

    def observe(self, step: AlignedStep) -> bool:
        """Whether the scaler skipped this step; at the first step seen, whether it has skipped any."""
        now, last = step.scaler, self._last
        if now is None:
            return False
        self._last = now
        if last is None:
            return now.num_skipped > 0
        return now.num_skipped > last.num_skipped or now.scale < last.scale
