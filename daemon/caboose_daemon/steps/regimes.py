"""The regimes of a run, declared or detected: rules are muted in some and start over after others.

Design
------
A healthy run has phases that look like faults: the learning rate is being warmed up, the first step compiles, a resumed
run jumps, a validation runs between two steps. They are recognised in one place, so that thirty rules need not each do
it. Declared events take precedence; the rest is detected:

    startup      the first steps of the first attempt: nothing is known yet
    warmup       the learning rate has only risen so far (detected), until it stops rising, or `warmup_end` is declared
    resume       the first steps of a later attempt, or of one that does not begin at step 0
    data_switch  declared; the next steps
    batch_ramp   declared, or the samples of a step changed by more than a fifth and stayed there
    restart      declared: the schedule begins anew on purpose
    evaluation   a validation was reported since the last step, so this step took longer
    compile      a step far longer than those before it, at the start

`active` has all that apply to the step; `began` those that began with it (but not the one an attempt begins in: its
rules are new anyway). What is found between two steps was found in the regimes of the last one (`now`). A restarted
daemon observes the steps in its journal again, so that the run is not in startup again because the daemon restarted.
"""

from collections.abc import Sequence

import msgspec

from caboose_wire import Event

STARTUP_STEPS = 20
SETTLING_STEPS = 20
"""Steps after a resume, a switch or a ramp for which its regime lasts."""
DECLARED = {
    "data_switch": "data_switch",
    "batch_ramp": "batch_ramp",
    "resume": "resume",
    "lr_restart": "restart",
    "restart": "restart",
}
"""Declared kinds of events, and the regime each begins."""
BATCH_CHANGE = 0.2
BATCH_STEPS = 3
COMPILE_STEPS = 5
COMPILE_FACTOR = 5.0


class Regime(msgspec.Struct, frozen=True):
    """The regimes of one step."""

    active: frozenset[str] = frozenset()
    began: frozenset[str] = frozenset()


NONE = Regime()


class RegimeTracker:
    """Follows one attempt of one job."""

    def __init__(self, *, is_resumed: bool = False) -> None:
        self._num_steps = 0
        self._until: dict[str, int] = {"resume" if is_resumed else "startup": SETTLING_STEPS}
        self.now = Regime(frozenset(self._until))
        """The regimes of the last step; of the beginning, before the first."""
        self._last_lr: float | None = None
        self._has_risen = False
        self._is_warming = True
        self._num_flat = 0
        self._samples: int | None = None
        self._num_other_samples = 0
        self._shortest_seconds: float | None = None

    def observe(
        self, *, lr: float | None, num_samples: int | None, step_seconds: float | None, events: Sequence[Event] = ()
    ) -> Regime:
        """The regimes of the step that was just aligned."""
        self._num_steps += 1
        began: set[str] = set()
        for event in events:
            if event.kind in DECLARED:
                began.add(DECLARED[event.kind])
            elif event.kind == "warmup_end":
                self._is_warming = False
        if num_samples is not None and self._batch_changed(num_samples):
            began.add("batch_ramp")
        for name in began:
            self._until[name] = self._num_steps + SETTLING_STEPS
        active: set[str] = set()
        if self._until:
            self._until = {name: last for name, last in self._until.items() if last >= self._num_steps}
            active.update(self._until)
        if lr is not None and self._is_warming and self._rises(lr):
            active.add("warmup")
        if events and any(event.kind == "validation" for event in events):
            active.add("evaluation")
        if step_seconds is not None and self._is_compiling(step_seconds):
            active.add("compile")
        self.now = Regime(frozenset(active), frozenset(began)) if active or began else NONE
        return self.now

    def _rises(self, lr: float) -> bool:
        """Whether the rate has only risen so far; a constant rate is not a warmup."""
        before, self._last_lr = self._last_lr, lr
        if before is None:
            return False
        if lr > before:
            self._has_risen, self._num_flat = True, 0
        elif lr < before:
            self._is_warming = False
        else:
            self._num_flat += 1
            if self._num_flat >= STARTUP_STEPS:
                self._is_warming = False
        return self._has_risen and self._is_warming

    def _batch_changed(self, num_samples: int) -> bool:
        if self._samples is None:
            self._samples = num_samples
        if abs(num_samples - self._samples) <= BATCH_CHANGE * self._samples:
            self._num_other_samples = 0
            return False
        self._num_other_samples += 1
        if self._num_other_samples < BATCH_STEPS:  # the last batch of an epoch is often a short one
            return False
        self._samples, self._num_other_samples = num_samples, 0
        return True

    def _is_compiling(self, seconds: float) -> bool:
        """Whether this step, one of the first few, takes many times as long as the shortest so far, or is the first."""
        shortest = self._shortest_seconds
        self._shortest_seconds = seconds if shortest is None else min(shortest, seconds)
        if self._num_steps > COMPILE_STEPS:
            return False
        return shortest is None or seconds > COMPILE_FACTOR * shortest
