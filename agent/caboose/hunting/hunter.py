"""Decides when a hunt is made, and reports its result.

Design
------
On the training thread only. With hunting on, each step's numbers are checked when they have come off the device (on a
CPU at once, on an accelerator a step or more later, without waiting). The first bad one freezes what `capturing` holds:
the batches of that step and of the one before it. Then:

- Without a brake, or if the daemon is not set to `auto`, the hunt is made at once, on this rank alone and on the
  current weights, or on this rank's newest good snapshot if it has a full one.
- With rollback `auto` on both sides, nothing is done here: the daemon asks all ranks for a hunt through the gate
  (`rollback.brake`), before the rollback.

At most `MAX_HUNTS` automatic hunts are made in a run. The frozen batches are dropped after a hunt, or after
`CALM_STEPS` good steps. A gradient scaler finds its scale by overflowing, so with one only the loss counts.

Nothing here raises except `KeyboardInterrupt` and the like; a hunt that fails reports so in its result. Its time does
not count as the agent's cost of a step.
"""

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from caboose.guard import Guard
from caboose.hunting.capturing import Call, Capture, Captures
from caboose.hunting.investigation import Suspect, investigate
from caboose.hunting.result import HuntResult
from caboose.hunting.running import LossFunction
from caboose.rollback.errors import NotCarriedOut
from caboose.trials.batches import parted
from caboose.trials.loss_kind import kind_of
from caboose.trials.trial import unwrapped

if TYPE_CHECKING:
    from caboose.rollback.brake import Brake

logger = logging.getLogger("caboose")

MAX_HUNTS = 3
CALM_STEPS = 200
"""Good steps after which the kept batches of a bad one are dropped."""
REST_STEPS = 3
"""Good steps after which a bad one counts as a new fault."""
JUDGED = ("loss", "grad_norm", "clip_total_norm")
MAX_REPORTING = 32
"""Ranks above this report only what concerns their own batch."""


class Lender(Protocol):
    """Weights from before the fault; see `rollback.ring`."""

    def newest_before(self, step: int) -> int | None:
        """The newest good snapshot that this rank could use alone."""

    def lend(self, step: int) -> "contextlib.AbstractContextManager[None]":
        """The model with that snapshot's weights, within a block."""


class Hunter:
    """One rank's hunts."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        rank: int,
        is_kept: bool,
        is_scaled: bool = False,
        report: Callable[[HuntResult], None],
        is_logged: bool = True,
    ) -> None:
        """With `is_kept`, batches are kept and hunts made automatically; else only a given batch is hunted."""
        self._is_logged = is_logged
        self.model, _ = unwrapped(model)
        self._optimizers = list(optimizers)
        self._rank = rank
        self._is_scaled = is_scaled
        self._report = report
        self.guard = Guard(on_trip=self.close)
        """Its own: the time of a hunt is not part of a step's cost."""
        self._captures = Captures(model, self.guard.protect) if is_kept else None
        self._unjudged: deque[tuple[int, float | None, Any]] = deque()
        self._num_calm = REST_STEPS
        self.bad_step: int | None = None
        """The first bad step that was not hunted yet."""
        self.num_left = MAX_HUNTS if is_kept else 0
        """Automatic hunts that may still be made."""
        self._guarded_end = self.guard.protect("hunt", self._end_step)

    def objection(self) -> str:
        """Why no automatic hunt is made, or nothing."""
        return "" if self.num_left else f"{MAX_HUNTS} hunts were made, the limit of one run"

    def see(self, batch: Any) -> None:
        """The watched loader returned a batch."""
        if self._captures is not None:
            self._captures.see(batch)

    def end_step(self, step: int, seen: Any, loss: Any, batches: Any) -> None:
        """A step has ended; `seen` are its observed values."""
        if self._captures is not None:
            self._guarded_end(self._captures, step, seen, loss, batches)

    def _end_step(self, captures: Captures, step: int, seen: Any, loss: Any, batches: Any) -> None:
        if not self.num_left:
            if captures.steps:
                captures.close()
            return
        captures.end_step(step, *_place(batches), loss)
        self._unjudged.append((step, seen.loss, seen.vector))
        while self._unjudged:
            judged, number, vector = self._unjudged[0]
            if vector is not None and not vector.is_ready():
                return
            self._unjudged.popleft()
            self._judge(captures, judged, is_sound=self._is_sound(number, vector))

    def _is_sound(self, loss: float | None, vector: Any) -> bool:
        if loss is not None and not math.isfinite(loss):
            return False
        if vector is None or bool(np.isfinite(vector.readback.read()).all()):
            return True
        values = vector.read()
        names = JUDGED[:1] if self._is_scaled else JUDGED
        return all(bool(np.isfinite(values[name][1]).all()) for name in names if name in values)

    def _judge(self, captures: Captures, step: int, *, is_sound: bool) -> None:
        if is_sound:
            self._num_calm += 1
            if not captures.is_frozen:
                captures.forget_before(step)
            elif self._num_calm >= CALM_STEPS:
                captures.thaw()
                self.bad_step = None
            return
        is_new, self._num_calm = self._num_calm >= REST_STEPS, 0
        if is_new and not captures.is_frozen:
            captures.is_frozen, self.bad_step = True, step

    def hunt_alone(self, brake: "Brake | None") -> None:
        """Makes the hunt for a bad step on this rank alone, unless all ranks will be asked for it."""
        step = self.bad_step
        if step is None or (brake is not None and brake.will_be_asked):
            return
        lender = None if brake is None else brake.lender
        snapshot = None if lender is None else lender.newest_before(step)
        self.hunt(step, lender=lender, snapshot=snapshot)

    def hunt(self, step: int, *, lender: Lender | None = None, snapshot: int | None = None) -> HuntResult:
        """Runs the batch of a bad step again, on a snapshot if one is named; reports and logs the result.

        Raises only what the lender raises when the weights could not be restored.
        """
        captures = self._captures
        capture = None if captures is None else captures.find(step) or captures.find(self.bad_step)
        self.num_left = max(0, self.num_left - 1)
        self.bad_step = None
        if capture is None or not capture.calls:
            why = "" if capture is None else capture.why_empty
            capture = Capture(step=step, why_empty=why or "no forward with gradients on was seen in that step")
        result = None
        if lender is not None and snapshot is not None:
            try:
                with lender.lend(snapshot):
                    result = self._investigate(capture, weights_of=snapshot)
            except NotCarriedOut as error:
                logger.info("caboose: the hunt is made on the current weights: %s", error)
        if result is None:
            result = self._investigate(capture)
        if captures is not None:
            captures.thaw()
        self._give(result)
        return result

    def hunt_now(self, current_step: int, loss_fn: LossFunction | None, batch: Any, batches: Any) -> HuntResult:
        """For `monitor.hunt_nan`: on this rank, on the current weights."""
        capture = None if self._captures is None else self._captures.find(self.bad_step)
        if batch is not None:
            inputs = batch if loss_fn is not None and kind_of(loss_fn) == "of model and batch" else parted(batch)[0]
            kept = capture.calls[-1] if capture is not None and capture.calls else None
            call = Call(*_arguments(inputs), batch=batch, is_training=self.model.training)
            if kept is not None:
                call = Call(
                    call.args,
                    call.kwargs,
                    batch,
                    random=kept.random,
                    autocast=kept.autocast,
                    is_training=kept.is_training,
                )
            capture = Capture(step=current_step, calls=[call])
        elif capture is not None and not capture.step:  # of the current step
            capture.step = current_step + 1
            capture.batch, capture.epoch = _place(batches)
        result = self._investigate(capture or Capture(step=current_step), loss_fn=loss_fn, batch=batch)
        self._give(result)
        return result

    def _investigate(self, capture: Capture, **how: Any) -> HuntResult:
        began = time.perf_counter()
        try:
            return investigate(Suspect(self.model, self._optimizers, capture, rank=self._rank, **how))
        except Exception as error:  # noqa: BLE001 - the run comes first; it is as it was
            self.guard.failed("hunt", error)
            return HuntResult(
                step=capture.step,
                rank=self._rank,
                declined=f"the hunt itself failed: {type(error).__name__}: {str(error)[:200]}",
                took_seconds=time.perf_counter() - began,
            )

    def _give(self, result: HuntResult) -> None:
        if self._is_logged:
            logger.warning("caboose: hunt: %s", result)
        is_own = result.where == "input" or bool(result.samples)
        if self._rank == 0 or (result.is_found and (is_own or self._rank < MAX_REPORTING)):
            self._report(result)

    def close(self) -> None:
        """Removes the hook and drops the batches."""
        if self._captures is not None:
            self._captures.close()
        self._unjudged.clear()


def _place(batches: Any) -> tuple[int | None, int | None]:
    """Index and epoch of the last batch, where a loader is watched."""
    return (batches.index, max(0, batches.epoch)) if batches.index >= 0 else (None, None)


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the model for a batch: a dictionary by name, anything else as one argument."""
    if isinstance(inputs, dict) and all(isinstance(key, str) for key in inputs):
        return (), dict(inputs)
    return (inputs,), {}
