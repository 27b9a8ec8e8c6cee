"""A job for each of the ten most frequent alerts, played through the real pipeline."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from caboose_wire import Event, Phases
from support.ranks import a_report
from support.scenario import Core, Scenario, scenario

SECONDS = 0.1


def _job(core: Core, name: str, now: float, ranks: int = 2, **settings: object) -> Scenario:
    extra = {"job": name, "core": core, "now": now, "incarnation": f"incarnation-{name}", "launch": f"launch-{name}"}
    return scenario(ranks, **{"noise": 0.01, **extra, **settings})


def _nan(core: Core, now: float) -> Scenario:
    return _job(core, "nan", now).healthy(100).nan_loss(1, at=110, steps=5, spreads=True)


def _spike(core: Core, now: float) -> Scenario:
    return _job(core, "spike", now).healthy(100).loss_spike(at=110, height=5.0, steps=15)


def _divergence(core: Core, now: float) -> Scenario:
    story = _job(core, "divergence", now).healthy(300)
    return story.losses(*np.linspace(2.0, 5.0, 150), *[5.0] * 150)


def _explosion(core: Core, now: float) -> Scenario:
    story = _job(core, "explosion", now).healthy(100)
    return story.gradients(*(30.0 * story.norms)).healthy(15)


def _silent(core: Core, now: float) -> Scenario:
    return _job(core, "silent", now).healthy(30).falls_silent(1).wait(35.0)


def _stalled(core: Core, now: float) -> Scenario:
    story = _job(core, "stalled", now, ranks=4).healthy(60)
    for rank in (0, 1, 3):
        story.says(rank, a_report(61, seq=61, time=story.now))
    for rank in range(4):
        story.beats(rank, phase="forward" if rank == 2 else "backward")
    return story.wait(130.0)


def _straggler(core: Core, now: float) -> Scenario:
    def phases(rank: int, step: int) -> Phases:
        own = 0.7 if rank == 1 else 0.3
        return Phases(1.1, 0.02, own, 1.0 - own, 0.03, math.nan, math.nan, math.nan)

    return _job(core, "straggler", now, ranks=4, step_seconds=1.0).plays(150, phases=phases)


def _schedule(core: Core, now: float) -> Scenario:
    def rate(rank: int, step: int) -> tuple[float]:
        return (1e-3 * (50.0 if step > 300 else 1.0) * 0.999**step,)

    return _job(core, "schedule", now).plays(320, lr=rate)


def _overfitting(core: Core, now: float) -> Scenario:
    story = _job(core, "overfitting", now, falling=0.5, level=3.0)
    for number, loss in enumerate((1.56, 1.54, 1.52, 1.51, 1.50, 1.63, 1.70, 1.80), 1):
        story.healthy(50)
        event = Event(attempt=0, step=50 * number, time=story.now, kind="validation", fields={"loss": loss})
        story.says(0, event)
    return story.healthy(2)


def _starved(core: Core, now: float) -> Scenario:
    return _job(core, "starved", now).plays(300, phases=Phases(0.2, 0.1, 0.03, 0.06, 0.01))


STORIES: Mapping[str, Callable[[Core, float], Scenario]] = {
    "non_finite": _nan,
    "loss_spike": _spike,
    "divergence": _divergence,
    "gradient_explosion": _explosion,
    "rank_silent": _silent,
    "job_stalled": _stalled,
    "straggler": _straggler,
    "lr_schedule": _schedule,
    "overfitting": _overfitting,
    "data_starved": _starved,
}
"""By the rule whose alert it is."""
SUMMARIES: Mapping[str, tuple[str, ...]] = {
    "non_finite": ("nan: loss is nan", "step 110", "rank 1"),
    "loss_spike": ("spike: loss high:", "against 1.99", "step 110"),
    "divergence": ("divergence: loss", "against", "step 3"),
    "gradient_explosion": ("explosion: gradient norm", "step 101"),
    "rank_silent": ("silent: rank 1 (node1, pid 101): no heartbeat for 30 s, last step 30",),
    "job_stalled": ("stalled: ", "no step for 12", "step 60", "rank 2 (node2"),
    "straggler": ("straggler: rank 1 (node1", "step"),
    "lr_schedule": ("schedule: learning rate jumped", "step 301"),
    "overfitting": ("overfitting: ", "above its best 1.5 at step 251"),
    "data_starved": ("starved: ", "50 % of a step of 200 ms", "since step"),
}
"""Parts of the summary: job, place, step and numbers."""
DESCRIPTIONS: Mapping[str, tuple[str, ...]] = {
    "non_finite": ("Where: rank 1 (node1, pid 101), in the forward phase; since step 110", "First: inspect the batch"),
    "loss_spike": ("First: If the loss is recovering, wait.", "Do not roll back at once"),
    "divergence": ("Meaning: The loss has diverged", "First: "),
    "gradient_explosion": ("Meaning: The gradient norm is far above", "First: "),
    "rank_silent": ("Where: rank 1 (node1, pid 101)", "`py-spy dump --pid 101`", "Likely cause: hung rank"),
    "job_stalled": ("Where: rank 2 (node2, pid 102)", "--pid 102"),
    "straggler": ("Where: rank 1 (node1, pid 101)", "First: "),
    "lr_schedule": ("Meaning: The learning rate left its schedule", "First: "),
    "overfitting": ("Meaning: Validation gets worse", "since step 251"),
    "data_starved": ("in the input phase", "First: prepare batches ahead"),
}
"""Parts of the description."""
EVERY_DESCRIPTION = ("Where: ", "Meaning: ", "First: ", "Evidence: ", "Do not ", "Acknowledge: caboose ack ")
