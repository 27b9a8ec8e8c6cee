"""The targets are made by the model that is trained: each step moves them, and values run away with them."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

FAR = 100.0
"""Growth that a run does not survive whose steps alone are too large."""
GREW = 5.0
"""Growth of the loss over its first level that shows targets running away."""
PARTS = 8


class BootstrappedTargets(Cause):
    """Targets without a delayed copy of the model."""

    id = "bootstrapped_targets"
    title = "bootstrapped targets without a target network"
    is_plain = True
    explains = BREAKS | STANDS_STILL | {"oscillation", "lr_too_high", "clipping"}
    rarity = 0.75

    def weigh(self, case: Case) -> Iterator[Evidence]:
        if case.setting("num_classes"):
            yield opposes(STRONG, "the targets are classes, which the model does not make")
            return
        objective = case.fact("objective")
        if objective == "reinforcement":
            yield supports(SLIGHT, "the objective is reinforcement: targets may be made of the model's own values")
        elif objective == "adversarial":
            yield opposes(STRONG, "the objective is adversarial")
            return
        losses = case.curve("loss")
        losses = losses[np.isfinite(losses)]
        if len(losses) < 10 * PARTS:
            return
        levels = np.array([float(np.median(part)) for part in np.array_split(losses, PARTS)])
        if levels[0] > 0 and levels[-1] > GREW * levels[0] and (np.diff(levels) > 0).mean() > 0.7:
            grew = levels[-1] / levels[0]
            weight = DECISIVE if grew > FAR else STRONG
            yield supports(weight, f"loss rose steadily, {grew:.2g}x over the run, as values that chase themselves do")
            update = case.update_ratio
            if update is not None and update < 1e-2:
                yield supports(FAIR, f"weights change by only {100 * update:.2g} % per step")
        elif levels[-1] < levels[0]:
            yield opposes(FAIR, "the loss fell: the targets did not run away")
        if case.found("bad_batch"):
            yield opposes(SLIGHT, "there was a bad batch")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="make the targets with a copy of the model that is updated every few hundred steps, or slowly",
            code="target.load_state_dict(model.state_dict())  # every 500 steps; targets: r + gamma * target(s2)",
            avoid="do not only lower the learning rate: values run away more slowly",
            verify="the mean value stays within rewards / (1 - gamma), and the loss does not grow",
        )
