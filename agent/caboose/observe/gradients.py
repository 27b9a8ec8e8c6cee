"""Reads the reduced gradients once per step, before clipping: norms always, more on sampled steps.

Design
------
Called when a clipper is entered, else when the optimizer's step begins: whichever comes first for an optimizer counts,
so norms are always those before clipping. One `_foreach_norm` covers this rank's part of the layers (see `layers`).
The lists of parameters per part are made once; a step only collects their gradients.

A loop may clip and then skip the step, because the norm was not finite. A clipper that is entered again after another
forward, without a step in between, has new gradients, and those are read instead. Parameters that two optimizers hold
are read with the first of them. Sparse gradients are not read: adding up their parts would wait for the device. They
are counted and reported as blind. So are gradients of DTensors that are placed in another way than their parameters,
where the ranks' parts do not give the norm; how they are placed is read in the first step, and again on sampled steps.
"""

from collections.abc import Callable, Sequence

import torch

from caboose.observe.layers import Division, LayerTable
from caboose.observe.step_vector import StepVector
from caboose.observe.step_vector import Stretch as Piece
from caboose.tensors.placement import gradient_factor, own
from caboose.tensors.subsample import histogram, sample, zero_fraction

Stretch = tuple[int, int]


class GradientReader:
    """The gradients of all optimizers, of one step at a time."""

    def __init__(
        self,
        table: LayerTable,
        optimizers: Sequence[torch.optim.Optimizer],
        division: Division,
        norm_type: torch.dtype,
        is_scaled: Callable[[int], bool] = lambda _: False,
        world: int = 1,
    ) -> None:
        """`is_scaled` returns whether an optimizer's gradients are still multiplied by the scaler's scale."""
        self._world = world
        self._is_scaled = is_scaled
        self._division = division
        self._parameters = table.parameters
        self._norm_type = norm_type
        self._watched = [_watched(table, optimizer) for optimizer in optimizers]
        self._ids = [{id(p) for _, p in watched} for watched in self._watched]
        is_sharded = any(layer.placement == "sharded" for layer in table.layers)
        is_special = any(p.is_complex() or hasattr(p, "device_mesh") for p in table.parameters)
        self._is_plain = not is_sharded and not is_special
        self._by_part: dict[tuple[int, Stretch], tuple[list[int], list[torch.Tensor]]] = {}
        held = [row for watched in self._watched for row, _ in watched]
        self._is_disjoint = len(set(held)) == len(held)
        self._done: dict[int, list[Piece]] = {}
        """What was read in this step, by optimizer."""
        self._used: set[int] = set()
        self._unused: set[int] = set()
        self.sparse_rows: set[int] = set()
        """Layers that had a sparse gradient."""
        self.partial_rows: set[int] = set()
        """Layers whose gradient's norm does not follow from the ranks' parts."""
        self._factors: dict[int, float] = {}
        """By layer: of norms that are multiplied by something else than 1; see `gradient_factor`."""
        self._placed: set[int] = set()
        """Layers whose gradient's placement is known."""
        self._pieces = StepVector()
        self.part: Stretch = (0, 0)
        self._is_sampled = False
        self._takes_norms = True

    def begin(self, step: int, pieces: StepVector, *, is_sampled: bool, takes_norms: bool) -> None:
        """A new step: nothing read yet."""
        self._done.clear()
        self._used.clear()
        self._unused.clear()
        self._takes_norms = takes_norms
        self._pieces = pieces
        self._is_sampled = is_sampled
        self.part = self._division.part(step)

    def holders(self, parameters: Sequence[torch.Tensor]) -> list[int]:
        """The optimizers that hold any of these parameters."""
        if len(self._ids) == 1:
            return [0]
        given = {id(parameter) for parameter in parameters}
        return [number for number, ids in enumerate(self._ids) if not given.isdisjoint(ids)]

    def note_forward(self) -> None:
        """Gradients that no step has used until now may never be used."""
        self._unused.update(self._done.keys() - self._used)

    def before_clip(self, number: int) -> None:
        """Reads one optimizer's gradients, which are about to be clipped."""
        if number in self._unused:
            self._unused.remove(number)
            self._pieces.drop(self._done.pop(number))
        self.read(number)

    def before_step(self, number: int) -> None:
        """Reads one optimizer's gradients, unless a clipper did, and notes that they are used."""
        self._used.add(number)
        self._unused.discard(number)
        self.read(number)

    def read(self, number: int) -> None:
        """Reads one optimizer's gradients, if that has not been done in this step."""
        if number in self._done or not self._takes_norms:
            return
        self._done[number] = []
        with torch.no_grad():  # gradients made with create_graph=True have a graph
            self._done[number] = self._read(number)

    def _read(self, number: int) -> list[Piece]:
        rows, parameters = self._unread(number)
        found = [g for parameter in parameters if (g := parameter.grad) is not None and g.layout is torch.strided]
        if len(found) != len(parameters):
            known = {id(g) for g in found}
            pairs = list(zip(rows, parameters, strict=True))
            self.sparse_rows.update(
                row for row, p in pairs if p.grad is not None and p.grad.layout is not torch.strided
            )
            rows = [row for row, parameter in pairs if id(parameter.grad) in known]
        if not found:
            return []  # no parameter of this optimizer is in this part, or none has a gradient
        if not self._is_plain:
            rows, found = self._own_parts(rows, found)
            if not found:
                return []
        name = "scaled_grad_norm" if self._is_scaled(number) else "grad_norm"
        norms: Sequence[torch.Tensor] = torch._foreach_norm(found, 2, dtype=self._norm_type)
        if self._factors:
            norms = [norm * self._factors.get(row, 1.0) for row, norm in zip(rows, norms, strict=True)]
        pieces = [self._pieces.add_scalars(name, norms, rows)]
        if self._is_sampled:
            matrix = sample(found)
            pieces.append(self._pieces.add("grad_zero_fraction", zero_fraction(matrix), rows))
            pieces.append(self._pieces.add("grad_histogram", histogram(matrix), rows))
        return pieces

    def _own_parts(self, rows: list[int], gradients: list[torch.Tensor]) -> tuple[list[int], list[torch.Tensor]]:
        """This rank's parts of the gradients that can be read."""
        for row, gradient in zip(rows, gradients, strict=True):
            if self._is_sampled or row not in self._placed:
                self._place(row, gradient)
        readable = [
            (row, own(gradient)) for row, gradient in zip(rows, gradients, strict=True) if row not in self.partial_rows
        ]
        return [row for row, _ in readable], [part for _, part in readable]

    def _place(self, row: int, gradient: torch.Tensor) -> None:
        self._placed.add(row)
        factor = gradient_factor(self._parameters[row], gradient, self._world)
        if factor is None:
            self.partial_rows.add(row)
        elif factor != 1.0:
            self._factors[row] = factor
        else:
            self._factors.pop(row, None)

    def _unread(self, number: int) -> tuple[list[int], list[torch.Tensor]]:
        """Rows and parameters of one optimizer that were not read with another one in this step."""
        rows, parameters = self._of_part(number)
        if self._is_disjoint:
            return rows, parameters
        read = {row for pieces in self._done.values() for piece in pieces for row in piece.rows}
        left = [(row, p) for row, p in zip(rows, parameters, strict=True) if row not in read]
        return [row for row, _ in left], [p for _, p in left]

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
