"""The models and optimizers that a launch without code watches, as parts, and their losses of the step that is open."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from caboose_wire.fields import MAX_PARTS

if TYPE_CHECKING:
    import torch

    from caboose.observe.parts import Outline


@dataclass(slots=True, eq=False)
class _Member:
    models: "tuple[torch.nn.Module, ...]"
    optimizers: "tuple[torch.optim.Optimizer, ...]"
    losses: "list[torch.Tensor]" = field(default_factory=list)
    has_own_loss: bool = False


class Members:
    """The parts in the order in which they joined. Without torch until the first one is added."""

    def __init__(self) -> None:
        self._members: list[_Member] = []
        self._place: dict[int, int] = {}
        self._names: list[str] = []

    def __contains__(self, optimizer: int) -> bool:
        return optimizer in self._place

    @property
    def num_optimizers(self) -> int:
        """Of all parts."""
        return len(self._place)

    @property
    def is_full(self) -> bool:
        return len(self._members) >= MAX_PARTS

    def add(self, models: "Sequence[torch.nn.Module]", optimizers: "Sequence[torch.optim.Optimizer]") -> None:
        self._place.update((id(optimizer), len(self._members)) for optimizer in optimizers)
        self._members.append(_Member(tuple(models), tuple(optimizers)))

    def hold_any(self, parameters: set[int]) -> bool:
        """Whether any of these parameters, given by identity, is updated by an optimizer of a part."""
        held = (id(p) for each in self._members for o in each.optimizers for g in o.param_groups for p in g["params"])
        return not parameters.isdisjoint(held)

    def part_of(self, optimizer: int) -> tuple[int, frozenset[int]]:
        """The number of its part, and all optimizers of that part."""
        place = self._place[optimizer]
        return place, frozenset(map(id, self._members[place].optimizers))

    def outline(self) -> "Outline":
        """All parts; those that had a name keep it."""
        from caboose.attachment.naming import names_of
        from caboose.observe.parts import Outline, TrainedPart

        held = [[p for o in each.optimizers for g in o.param_groups for p in g["params"]] for each in self._members]
        pairs = list(zip((each.models for each in self._members), held, strict=True))
        self._names += names_of(pairs, taken=self._names)
        parts = [
            TrainedPart(name, each.models, each.optimizers)
            for name, each in zip(self._names, self._members, strict=True)
        ]
        return Outline.of_parts(parts)

    def add_loss(self, optimizer: int, loss: "torch.Tensor | None", is_own: bool) -> None:
        """What a step of this optimizer minimised; `is_own` if it was the loss of no other part."""
        if loss is not None:
            member = self._members[self._place[optimizer]]
            member.losses.append(loss)
            member.has_own_loss |= is_own

    @property
    def num_own_losses(self) -> int:
        """Parts with a loss of their own in the step that is open."""
        return sum(member.has_own_loss for member in self._members)

    def take_losses(self) -> Any:
        """The loss of the only part, or one for each part by its name; of several steps of one part their mean."""
        found = []
        for member in self._members:
            losses, member.losses, member.has_own_loss = member.losses, [], False
            found.append(_mean(losses))
        return dict(zip(self._names, found, strict=True)) if len(found) > 1 else found[0] if found else None


def _mean(losses: "list[torch.Tensor]") -> "torch.Tensor | None":
    if len(losses) < 2:
        return losses[0] if losses else None
    import torch

    first = losses[0]
    return torch.stack([loss.to(first.device, torch.float32, non_blocking=True) for loss in losses]).mean()
