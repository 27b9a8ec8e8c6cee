"""The statistics of sampled steps: activations, local gradients, updates, weights, replica fingerprints, the batch.

Design
------
On the training thread. The order in a sampled step: first forward (`begin_forward` arms the activation and
local-gradient hooks), its end (`end_forward` removes the activation hooks), optimizer pre-hook (`before_update` copies
a subsample of the weights), post-hook (`after_update` compares it with the same subsample), boundary (`add_to`).
Between sampled steps none of these hooks exists.
"""

from collections.abc import Callable

import torch

from caboose.guard import Protect
from caboose.observe import compiled, opaque
from caboose.observe.activations import Activations
from caboose.observe.batches import BatchCounter
from caboose.observe.gradients import GradientReader
from caboose.observe.layers import LayerTable, plain_name
from caboose.observe.local_gradients import LocalGradients
from caboose.observe.routers import Router
from caboose.observe.step_vector import StepVector
from caboose.observe.weights import Fingerprint, sample_weights, update_ratio
from caboose.tensors.placement import own
from caboose.tensors.subsample import histogram


class Samples:
    """The statistics of one model on sampled steps."""

    def __init__(
        self,
        model: torch.nn.Module,
        table: LayerTable,
        protect: Protect,
        norm_type: torch.dtype,
        *,
        compares_ranks: bool,
        in_graphs: bool = False,
        name_of: Callable[[str], str] = plain_name,
    ) -> None:
        """`compares_ranks` is set under DDP: local gradients and fingerprints can then differ between ranks.

        `in_graphs` is set where activations inside compiled graphs are asked for.
        """
        self._name_of = name_of
        self._model = model
        self._table = table
        self._protect = protect
        self._norm_type = norm_type
        self.batches = BatchCounter()
        self.local: LocalGradients | None = None
        self.fingerprint: Fingerprint | None = None
        if compares_ranks:
            self._compare_ranks()
        self.activations: Activations | None = None
        self._why_no_graphs = compiled.install() if in_graphs else ""
        self._in_graphs = in_graphs and not self._why_no_graphs
        self.why_no_activations = ""
        self._named_routers: list[tuple[torch.nn.Module, Router]] = []
        self._watch_activations()
        self._before_update: dict[int, torch.Tensor] = {}
        self._updated: set[int] = set()
        """Optimizers whose update was compared: only the first step of each counts."""

    def _compare_ranks(self) -> None:
        common = [self._table.parameters[row] for row in self._table.common]
        self.local = LocalGradients(common, self._protect, self._norm_type)
        self.fingerprint = Fingerprint(common) if self._table.is_replicated and common else None

    def change_table(self, table: LayerTable) -> None:
        """The optimizers hold other parameters now."""
        is_other, self._table = table.index != self._table.index, table
        if not is_other:
            return
        if self.local is not None:
            self.local.disarm()
            self._compare_ranks()
        if self.activations is not None:
            self.activations.disarm()
            self.activations = None
            self._watch_activations()

    def _watch_activations(self) -> None:
        self.why_no_activations = opaque.reason_for_blindness(self._model)
        if opaque.is_compiled(self._model):
            self.why_no_activations = "" if self._in_graphs else self._why_no_graphs or self.why_no_activations
        if not self.why_no_activations:
            held = self._table.held()
            self.activations = Activations(
                self._model, self._protect, held, in_graphs=self._in_graphs, name_of=self._name_of
            )
            for module, router in self._named_routers:
                self.activations.add_router(module, router)

    def watch_router(self, module: torch.nn.Module, router: Router) -> bool:
        """Whether the choices of this module are read from now on."""
        if self.activations is None or not self.activations.add_router(module, router):
            return False
        self._named_routers.append((module, router))
        return True

    def begin_step(self) -> None:
        """A sampled step of a model that was never called so far: perhaps its graphs are in a compiled function."""
        if self.activations is not None:
            self.activations.arm_graphs()

    def begin_forward(self, module: torch.nn.Module) -> None:
        if self.local is not None and not self.local.is_armed:
            self.local.arm()
        if self.activations is not None:
            self.activations.arm(module)

    def end_forward(self) -> None:
        if self.activations is not None and self.activations.is_armed:
            self.activations.disarm()

    @property
    def saw_activations(self) -> bool:
        """Whether a sampled step showed any."""
        return self.activations is not None and self.activations.num_read > 0

    def why_not_in_graphs(self) -> dict[str, str] | None:
        """What was not seen of compiled graphs in the step that ends, and why; None if no forward was watched."""
        if self.activations is None or self.activations.graphs is None:
            return None
        return self.activations.graphs.why_unseen(saw_others=self.saw_activations)

    def before_update(self, number: int, gradients: GradientReader) -> None:
        """An optimizer is about to step."""
        if number not in self._updated:
            self._updated.add(number)
            rows, parameters = gradients.parameters(number)
            if rows:
                self._before_update[number] = sample_weights(parameters)

    def after_update(self, number: int, gradients: GradientReader, vector: StepVector) -> None:
        """It has stepped."""
        before = self._before_update.pop(number, None)
        if before is not None:
            rows, parameters = gradients.parameters(number)
            after = sample_weights(parameters)
            vector.add("update_ratio", update_ratio(before, after), rows)
            vector.add("weight_histogram", histogram(after), rows)

    def add_to(self, vector: StepVector, gradients: GradientReader, num_optimizers: int) -> None:
        """The step ends: adds what was collected, and what is read now."""
        if self.local is not None and self.local.is_armed:
            rows, norms = self.local.take()
            if rows:
                vector.add_scalars("local_grad_norm", norms, [self._table.common[row] for row in rows])
        if self.activations is not None:
            self.end_forward()
            rows, arrays = self.activations.take()
            for name, values in arrays.items():
                vector.add(name, values, rows)
            for rows, arrays in self.activations.take_choices():
                for name, values in arrays.items():
                    vector.add(name, values, rows)
        for number in range(num_optimizers):
            rows, parameters = gradients.parameters(number)
            if rows:
                parts = [own(p).detach() for p in parameters]
                vector.add_scalars("weight_norm", torch._foreach_norm(parts, 2, dtype=self._norm_type), rows)
        if self.fingerprint is not None:
            whole, layers = self.fingerprint.take()
            vector.add("fingerprint", whole, range(4))
            vector.add("layer_fingerprint", layers, self._table.common)
        self.batches.add_to(vector)

    def drop(self) -> None:
        """Forgets what was collected and not taken."""
        self.end_forward()
        self._before_update.clear()
        self._updated.clear()
        if self.local is not None and self.local.is_armed:
            self.local.take()
        if self.activations is not None:
            self.activations.forget()

    def close(self) -> None:
        """Removes its hooks."""
        if self.local is not None:
            self.local.disarm()
        self.end_forward()
        if self._in_graphs:
            self._in_graphs = False
            compiled.uninstall()
