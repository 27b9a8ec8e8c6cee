"""The parts of a job (several models, each with a loss of its own), and an aligned step as one part sees it.

Design
------
A part is a range of the layer table and of the parameter groups, and one of the losses in each report. `PartStep` is
the whole step narrowed to that: a rule that reads loss, norms, layers and rates judges a part as it judges a job, and
needs not know of parts. What belongs to the whole process (phases, batches, modes, ranks) is the same in every part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from caboose_daemon.steps.aligned import AlignedStep, mean_loss
from caboose_daemon.steps.masked import LayerValues, ModuleValues
from caboose_daemon.steps.reduce_ranks import global_norm
from caboose_daemon.steps.view import JobView
from caboose_wire import Group, Layer, Module, Part


@dataclass(frozen=True)
class JobPart:
    """One part, with its rows of the tables."""

    name: str
    number: int
    layers: slice
    groups: slice
    modules: tuple[int, ...]
    main_group: int
    """Which of its groups its learning rate is of: the one with most parameters."""

    @property
    def rows(self) -> NDArray[np.intp]:
        return np.array(self.modules, dtype=np.intp)

    def modules_of(self, modules: Sequence[Module]) -> tuple[Module, ...]:
        return tuple(modules[row] for row in self.modules if row < len(modules))


def job_parts(parts: Sequence[Part], groups: Sequence[Group], modules: Sequence[Module]) -> tuple[JobPart, ...]:
    """The parts that a Hello names; with one there is nothing to tell apart."""
    if len(parts) < 2 or len({part.name for part in parts}) < len(parts):
        return ()
    found = []
    for number, part in enumerate(parts):
        sizes = [group.num_parameters for group in groups[slice(*part.groups)]]
        own = tuple(row for row, module in enumerate(modules) if module.name.partition(".")[0] == part.name)
        main = sizes.index(max(sizes)) if sizes else 0
        found.append(JobPart(part.name, number, slice(*part.layers), slice(*part.groups), own, main))
    return tuple(found)


class PartStep(AlignedStep, frozen=True, kw_only=True, dict=True, eq=False):
    """A step with the loss, the layers and the rates of one part."""

    whole: AlignedStep
    part: JobPart

    def layer_values(self, name: str) -> LayerValues | None:
        """One of the sampled arrays, over the layers of the part."""
        found = self.whole.layer_values(name)
        return None if found is None else found.part(self.part.layers)

    def module_values(self, name: str) -> ModuleValues | None:
        """One of the activation arrays, over the modules of the part."""
        found = self.whole.module_values(name)
        return None if found is None else found.columns(self.part.rows)


def narrowed(step: AlignedStep, part: JobPart) -> PartStep:
    """The step as this part sees it."""
    loss, has_loss = np.zeros_like(step.loss), np.zeros_like(step.has_loss)
    for rank, report in step.reports.items():
        if part.number < len(report.part_losses) and (value := report.part_losses[part.number]) is not None:
            loss[rank], has_loss[rank] = value, True
    layers = step.layers[part.layers]
    norms = step.layer_grad_norm.part(part.layers)
    fields: dict[str, Any] = {name: getattr(step, name) for name in AlignedStep.__struct_fields__}
    fields |= {
        "loss": loss,
        "has_loss": has_loss,
        "mean_loss": mean_loss(loss, has_loss, step.weight),
        "lr": step.lr[part.groups],
        "main_group": part.main_group,
        "layers": layers,
        "layer_grad_norm": norms,
        "grad_norm": None if step.has_local_gradients else global_norm(norms, layers),
        "local_layer_grad_norm": _local(step.local_layer_grad_norm, part.layers),
        "has_local_grad_norm": np.zeros_like(step.has_local_grad_norm),
    }
    return PartStep(whole=step, part=part, **fields)


def _local(norms: Mapping[int, NDArray[np.float32]], rows: slice) -> dict[int, NDArray[np.float32]]:
    return {rank: of_rank[rows] for rank, of_rank in norms.items()}


def view_of(view: JobView, part: JobPart, step: PartStep | None) -> JobView:
    """What rules may see of one part."""
    return msgspec.structs.replace(
        view,
        layers=layers_of(view.layers, part),
        groups=view.groups[part.groups],
        modules=part.modules_of(view.modules),
        step=step,
        previous_lr=view.previous_lr if part.number == 0 else None,
        previous_scheduler_steps=view.previous_scheduler_steps if part.number == 0 else None,
    )


def layers_of(layers: Sequence[Layer], part: JobPart) -> Sequence[Layer]:
    return layers[part.layers]
