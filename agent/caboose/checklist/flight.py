"""The data of the checks: the trial, the batches, and the first forward and backward, made once."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from caboose.trials.batches import Split, parted
from caboose.trials.inspecting import Inspection, look
from caboose.trials.loss_kind import criterion_of
from caboose.trials.progress import ProgressLine
from caboose.trials.sources import BatchSource
from caboose.trials.trial import Trial

OUTPUT_NAMES = ("logits", "prediction_logits", "output", "outputs", "prediction", "predictions", "last_hidden_state")
FEW = 256
"""The largest number of distinct integer targets that counts as classes if the output's shape agrees."""


@dataclass
class Flight:
    """One run of the checklist."""

    trial: Trial
    train: BatchSource
    validation: BatchSource | None
    test: BatchSource | None
    batches: list[Any]
    scheduler: Any
    checkpoint: Any
    split: Split | None
    given_classes: int | None
    given_ignored: int | None
    loss_fn: Any
    overfit_steps: int
    overlap_seconds: float
    bar: ProgressLine

    problem: str | None = None
    """Why no step can be made; None if one can, or it was not tried."""

    def __post_init__(self) -> None:
        self.modes = {name: module.training for name, module in self.trial.model.named_modules()}
        """Of each module, as it was found."""

    @property
    def batch(self) -> Any:
        """The first one of this rank."""
        return self.batches[0]

    @cached_property
    def inputs_and_targets(self) -> tuple[Any, torch.Tensor | None]:
        """Of the first batch."""
        return parted(self.batch, self.split)

    @property
    def targets(self) -> torch.Tensor | None:
        """Of the first batch."""
        return self.inputs_and_targets[1]

    @cached_property
    def inspection(self) -> Inspection:
        """Gradients and outputs of the first batch, in training mode."""
        self.trial.train()
        found = look(self.trial, self.batch)
        self.trial.rewind()
        return found

    @cached_property
    def output(self) -> torch.Tensor | None:
        """The model's output for the first batch; None if the loss does not call the model itself."""
        self.trial.train()
        seen: list[torch.Tensor] = []
        with contextlib.suppress(Exception):  # an error of the loss, after the model: reported as `problem`
            self._see_outputs(self.batch, seen)
        self.trial.rewind()
        return seen[0] if seen else None

    def outputs_of(self, batch: Any) -> list[torch.Tensor]:
        """The outputs of the model's calls, in its current mode."""
        seen: list[torch.Tensor] = []
        self._see_outputs(batch, seen)
        return seen

    def _see_outputs(self, batch: Any, seen: list[torch.Tensor]) -> None:
        """Outputs before the loss raised are recorded, too."""

        def see(_module: Any, _args: Any, output: Any) -> None:
            tensor = main_tensor(output)
            if tensor is not None:
                seen.append(tensor.detach().clone())

        handle = self.trial.model.register_forward_hook(see)
        try:
            with torch.no_grad():
                self.trial.loss(batch)
        finally:
            handle.remove()

    @cached_property
    def num_classes(self) -> int | None:
        """As given; else from the shapes of output and integer targets."""
        if self.given_classes is not None:
            return self.given_classes
        targets, output = self.targets, self.output
        if targets is None or output is None or targets.is_floating_point() or targets.dtype is torch.bool:
            return None
        width = None
        if output.dim() == targets.dim() + 1 and output.is_floating_point():
            if output.shape[:-1] == targets.shape:
                width = int(output.shape[-1])
            elif output.shape[:1] + output.shape[2:] == targets.shape:
                width = int(output.shape[1])
        elif output.dim() == 2 and output.shape[0] == targets.numel():
            width = int(output.shape[1])
        return width if width is not None and width > 1 else None  # one logit separates two classes, or is a number

    @cached_property
    def are_classes(self) -> bool:
        """Whether the targets are certainly classes: as given, or the output has one place for each."""
        found = [parted(batch, self.split)[1] for batch in self.batches]
        learned = [self.learned_targets(part) for part in found if part is not None]
        top = max((int(part.max()) for part in learned if part.numel()), default=-1)
        return self.given_classes is not None or top + 1 == self.num_classes

    @cached_property
    def known_ignored(self) -> int | None:
        """The target that the loss ignores, as given or from a criterion; None if unknown."""
        if self.given_ignored is not None:
            return self.given_ignored
        criterion, settings = criterion_of(self.loss_fn)
        if "ignore_index" in settings:
            return int(settings["ignore_index"])
        found = getattr(criterion, "ignore_index", None)
        return int(found) if isinstance(found, int) else None

    @property
    def ignored_target(self) -> int:
        """The target that is assumed to be ignored."""
        return -100 if self.known_ignored is None else self.known_ignored

    def learned_targets(self, targets: torch.Tensor) -> torch.Tensor:
        """Without ignored targets."""
        flat = targets.detach().reshape(-1)
        return flat if flat.is_floating_point() else flat[flat != self.ignored_target]


def main_tensor(output: Any) -> torch.Tensor | None:
    """The prediction in what a model returned: a tensor, the usual names, the first of a tuple."""
    if isinstance(output, torch.Tensor):
        return output
    for name in OUTPUT_NAMES:
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(found, torch.Tensor):
            return found
    values = list(output.values()) if isinstance(output, Mapping) else output
    if isinstance(values, tuple | list):
        tensors = [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point() and v.dim() > 0]
        return tensors[0] if tensors else None
    return None


def number(value: float) -> str:
    """Short, for the table."""
    return f"{value:.3g}" if math.isfinite(value) else str(value)
