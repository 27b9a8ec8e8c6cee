"""Reads the reduced gradients once per step, before clipping: norms always, a closer look on sampled steps.

Design
------
Called when a clipper is entered, else when the optimizer's step begins: whichever comes first for an optimizer is
what counts, so norms are always those before clipping. One `_foreach_norm` covers this rank's part of the layers
(see `division`). The lists of parameters per part are made once; a step only collects their gradients.
"""

from collections.abc import Sequence

import torch

from caboose.division import Division
from caboose.layers import LayerTable
from caboose.pieces import Pieces
from caboose.placement import own
from caboose.subsample import histogram, sample, zero_fraction

Part = tuple[int, int]


class GradientReader:
    """The gradients of all optimizers, of one step at a time."""

    def __init__(
        self,
        table: LayerTable,
        optimizers: Sequence[torch.optim.Optimizer],
        division: Division,
        norm_type: torch.dtype,
    ) -> None:
        self._division = division
        self._norm_type = norm_type
        self._watched = [_watched(table, optimizer) for optimizer in optimizers]
        self._ids = [{id(p) for _, p in watched} for watched in self._watched]
        is_sharded = any(layer.placement == "sharded" for layer in table.layers)
        is_special = any(p.is_complex() or hasattr(p, "device_mesh") for p in table.parameters)
        self._is_plain = not is_sharded and not is_special
        self._by_part: dict[tuple[int, Part], tuple[list[int], list[torch.Tensor]]] = {}
        self._done: set[int] = set()
        self._pieces = Pieces()
        self.part: Part = (0, 0)
        self._is_sampled = False
        self._takes_norms = True

    def begin(self, step: int, pieces: Pieces, *, is_sampled: bool, takes_norms: bool) -> None:
        """A new step: nothing read yet."""
        self._done.clear()
        self._takes_norms = takes_norms
        self._pieces = pieces
        self._is_sampled = is_sampled
        self.part = self._division.part(step)

    def before_clip(self, parameters: Sequence[torch.Tensor]) -> None:
        """Reads every optimizer that holds any of these parameters; none of them has been clipped yet."""
        if len(self._ids) == 1:
            self.read(0)
            return
        given = {id(parameter) for parameter in parameters}
        for number, ids in enumerate(self._ids):
            if not given.isdisjoint(ids):
                self.read(number)

    def read(self, number: int) -> None:
        """Reads one optimizer's gradients, if that has not been done in this step."""
        if number in self._done or not self._takes_norms:
            return
        self._done.add(number)
        rows, parameters = self._of_part(number)
        found = [g for parameter in parameters if (g := parameter.grad) is not None and g.layout is torch.strided]
        if not found:
            return  # nothing of this optimizer lies in this part, or nothing has a gradient
        if len(found) != len(parameters):
            known = {id(g) for g in found}
            rows = [row for row, parameter in zip(rows, parameters, strict=True) if id(parameter.grad) in known]
        if not self._is_plain:
            found = [own(gradient) for gradient in found]
        self._pieces.add_scalars("grad_norm", torch._foreach_norm(found, 2, dtype=self._norm_type), rows)
        if self._is_sampled:
            matrix = sample(found)
            self._pieces.add("grad_zero_fraction", zero_fraction(matrix), rows)
            self._pieces.add("grad_histogram", histogram(matrix), rows)

    def _of_part(self, number: int) -> tuple[list[int], list[torch.Tensor]]:
        key = (number, self.part)
        found = self._by_part.get(key)
        if found is None:
            first, last = self.part
            inside = [(row, p) for row, p in self._watched[number] if first <= row < last]
            found = self._by_part[key] = ([row for row, _ in inside], [p for _, p in inside])
        return found

    def parameters(self, number: int) -> tuple[list[int], list[torch.Tensor]]:
        """Rows and parameters of one optimizer in this step's part."""
        return self._of_part(number)


def _watched(table: LayerTable, optimizer: torch.optim.Optimizer) -> list[tuple[int, torch.Tensor]]:
    return [
        (row, p)
        for group in optimizer.param_groups
        for p in group["params"]
        if (row := table.index.get(id(p))) is not None and table.layers[row].placement != "unknown"
    ]
