"""The hooks on model and optimizers, and what they saw of the step that is ending.

Design
------
All of it runs on the training thread; nothing waits for a device and nothing communicates. The parts each own one
kind of statistic and leave their values in the step's `Pieces`, which leave the device as one vector.

A step is looked at closely (`sampled`) at the governor's cadence, and after something went wrong. The order in a
sampled step: first forward (activations and local-gradient hooks go in), its end (activation hooks come out),
clipper or optimizer pre-hook (gradients; a sample of the weights before the update), optimizer post-hook (the same
sample after it), boundary (local norms, fingerprint, batch). Between sampled steps only the model's and the
optimizers' own hooks exist.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from caboose.observe import activations, facts
from caboose.observe.activations import Activations
from caboose.observe.batches import BatchCounter
from caboose.observe.clipping import Clipped, ClippingObserver
from caboose.observe.division import Division
from caboose.observe.gradients import GradientReader
from caboose.observe.layers import LayerTable, group_table
from caboose.observe.local_gradients import LocalGradients
from caboose.observe.modes import Modes
from caboose.observe.optimizers import OptimizerState
from caboose.observe.parameter_changes import ParameterChanges
from caboose.observe.phases import PhaseClock
from caboose.observe.step_vector import StepVector, Vector
from caboose.observe.weights import Fingerprint, sample_weights, update_ratio
from caboose.tensors.placement import own, without_compile
from caboose.tensors.readable import mean
from caboose.tensors.readback import Utilization, device_phases, memory_bytes
from caboose.tensors.scalars import as_number
from caboose.tensors.subsample import histogram, warm_up
from caboose_wire import Layer, Mode

MAX_UNCALLED = 8
"""Steps without one forward of the attached module, from the first on, until that is told."""
UNCALLED = "the attached module itself is never called, or only inside a compiled graph"

Protect = Callable[[str, Callable[..., Any]], Callable[..., Any]]


@dataclass(slots=True)
class ObservedStep:
    """What one step left behind: plain values at once, device values as a vector still on its way."""

    loss: float | None
    lr: tuple[float, ...]
    clipped: Clipped
    mode: Mode | None
    is_sampled: bool
    is_clip_scaled: bool
    """Whether the clipper was given gradients that were still multiplied by the scaler's scale."""
    num_skipped: int | None
    vector: Vector | None


class Observer:
    """Owns every hook of this agent; `close` takes them all out again."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        clock: PhaseClock,
        protect: Protect,
        rank: int = 0,
        world: int = 1,
        schedulers: Sequence[Any] = (),
        scaler: Any = None,
    ) -> None:
        self.optimizers = list(optimizers)
        self._model = model
        self._world = world
        self._protect = protect
        self._holdings = ParameterChanges(self.optimizers)
        self._has_looked = False
        self._takes_norms = True
        self.table = LayerTable(model, optimizers, world)
        self.groups = group_table(optimizers)
        self.wrapper = type(model).__name__
        self.facts = facts.gather(model, optimizers, schedulers=schedulers, scaler=scaler)
        self.blind = dict(self.table.blind)
        self.batches = BatchCounter()
        self._clock = clock
        self._pieces = StepVector()
        self._step = 0
        self._is_sampled = False
        self._is_clip_scaled = False
        self._mode: Mode | None = None
        self._num_uncalled = 0
        self._blind_while_uncalled: frozenset[str] = frozenset()
        """Steps so far, as long as the model was never called."""
        self._was_called = False
        self._num_steps_taken = 0
        self._num_sparse = 0
        self._has_news = False
        is_double = any(p.dtype in (torch.float64, torch.complex128) for p in self.table.parameters)
        norm_type = torch.float64 if is_double else torch.float32  # a norm must not be narrower than its input
        self._norm_type = norm_type
        is_reduced = world > 1 and isinstance(without_compile(model), torch.nn.parallel.DistributedDataParallel)
        is_sharded = any(layer.placement == "sharded" for layer in self.table.layers)
        self.is_reduced = is_reduced or is_sharded
        """Whether the optimizers are given the gradients of all ranks together."""
        sizes = [layer.numel for layer in self.table.layers]
        self._division = Division(sizes, rank, world, is_divided=is_reduced and self.table.is_replicated)
        self._state = OptimizerState(self.optimizers, scaler)
        self._gradients = self._reader()
        self._clipping = ClippingObserver(frozenset(self.table.index), self._before_clip, protect)
        self._local: LocalGradients | None = None
        self._fingerprint: Fingerprint | None = None
        if is_reduced:
            self._compare_ranks()
        self._modes = Modes(model)
        self._device = self.table.parameters[0].device if self.table.parameters else torch.device("cpu")
        clock.device_phases = device_phases(self._device)
        self.utilization = Utilization(self._device)
        self._activations = self._activations_of(model, protect)
        self._before_update: dict[int, torch.Tensor] = {}
        self._updated: set[int] = set()
        """Optimizers whose update was looked at: of several in one step, or in a loop without boundaries, the first."""
        protect("warm-up", warm_up)(self._device)
        if self._clipping.is_blind:
            self.blind["clipping"] = "this torch's clippers are built in a way not understood"
        if world > 1 and self._local is None:
            self.blind["local_gradients"] = "seen only under DistributedDataParallel"
        self._handles: list[RemovableHandle] = [
            model.register_forward_pre_hook(protect("forward hook", self._before_forward)),
            model.register_forward_hook(protect("forward hook", self._after_forward), always_call=True),
        ]
        for number, optimizer in enumerate(self.optimizers):
            read = self._read_optimizer(number)
            before = protect("optimizer hook", self._before_optimizer_step(read, protect("optimizer hook", read)))
            after = protect("optimizer hook", self._after_optimizer_step(number))
            self._handles.append(optimizer.register_step_pre_hook(before))
            self._handles.append(optimizer.register_step_post_hook(after))

    def _reader(self) -> GradientReader:
        return GradientReader(self.table, self.optimizers, self._division, self._norm_type, self._state.is_scaled)

    def _compare_ranks(self) -> None:
        common = [self.table.parameters[row] for row in self.table.common]
        self._local = LocalGradients(common, self._protect, self._norm_type)
        self._fingerprint = Fingerprint(common) if self.table.is_replicated and common else None

    def _look_at_holdings(self) -> None:
        """Before anything else in a step: what the optimizers hold now is what is read."""
        if not self._has_looked:
            self._has_looked = True
            if self._holdings.have_changed(is_sampled=self._is_sampled):
                self._look_anew()

    def _look_anew(self) -> None:
        """The optimizers hold other parameters: they are watched if they are the same layers, else that is told."""
        table = LayerTable(self._model, self.optimizers, self._world)
        self.groups = group_table(self.optimizers)
        self._has_news = True
        self.blind = {k: v for k, v in {**self.blind, **table.blind}.items() if k != "parameters"}
        if [_lie(layer) for layer in table.layers] != [_lie(layer) for layer in self.table.layers]:
            self.blind["parameters"] = "they changed after attach, and not all are watched: call attach again"
            return
        is_other = table.index != self.table.index
        self.table = table
        self._gradients = self._reader()
        self._begin_gradients()
        self._clipping.owned = frozenset(table.index)
        if is_other:
            if self._local is not None:
                self._local.disarm()
                self._compare_ranks()
            if self._activations is not None:
                self._activations.disarm()
                self._activations = self._activations_of(self._model, self._protect)

    def _activations_of(self, model: torch.nn.Module, protect: Protect) -> Activations | None:
        reason = activations.reason_for_blindness(model)
        if reason:
            self.blind["activations"] = reason
            self._blind_while_uncalled -= {"activations"}  # it stays hidden when the model is called
            return None
        return Activations(model, protect)

    @property
    def modules(self) -> tuple[Any, ...]:
        """Where activations are seen, for Hello."""
        return tuple(self._activations.modules) if self._activations is not None else ()

    @property
    def part(self) -> tuple[int, int]:
        """The rows of the layer table that are this rank's in this step."""
        return self._gradients.part

    def device_bytes(self) -> int | None:
        """Memory in use on the model's device; None on the CPU."""
        return memory_bytes(self._device)

    def take_news(self) -> bool:
        """Whether something was met that Hello has not told of yet: functional activations, new blindness."""
        has_news, self._has_news = self._has_news, False
        if self._activations is not None and self._activations.has_new_sites:
            self._activations.has_new_sites = False
            return True
        return has_news

    @property
    def visible(self) -> tuple[str, ...]:
        """What Hello says this agent sees."""
        seen = ["loss", "lr", "phases", "weights"]
        if any(layer.placement != "unknown" for layer in self.table.layers):
            seen.append("gradients")
        parts = {
            "modes": self._modes,
            "local_gradients": self._local,
            "fingerprint": self._fingerprint,
            "activations": self._activations,
            "clipping": None if self._clipping.is_blind else self._clipping,
        }
        return (*seen, *(name for name, part in parts.items() if part is not None and name not in self.blind))

    def begin(self, *, is_sampled: bool, takes_norms: bool = True) -> None:
        """A new step begins."""
        if self._is_sampled:  # the step that ends was: what failed to be taken is not for another step
            self._let_go()
        self._is_sampled = is_sampled
        self._pieces = StepVector()
        self._mode = None
        self._is_clip_scaled = False
        self._has_looked = False
        self._takes_norms = takes_norms
        self._begin_gradients()

    def _begin_gradients(self) -> None:
        self._gradients.begin(self._step, self._pieces, is_sampled=self._is_sampled, takes_norms=self._takes_norms)

    def _disarm(self) -> None:
        if self._activations is not None and self._activations.is_armed:
            self._activations.disarm()

    def _let_go(self) -> None:
        self._disarm()
        self._before_update.clear()
        self._updated.clear()
        if self._local is not None and self._local.is_armed:
            self._local.take()
        if self._activations is not None:
            self._activations.forget()

    def _before_forward(self, module: torch.nn.Module, _args: Any) -> None:
        self._disarm()  # if an interrupt ended the forward before
        if not torch.is_grad_enabled() or torch._C._get_tracing_state() is not None:
            return  # an evaluation inside the loop, or an export, is not part of the step's forward
        self._look_at_holdings()
        self._gradients.note_forward()
        self._clipping.totals.note_forward()
        is_first, self._mode = self._mode is None, self._modes.look()
        if not self._was_called:
            self._note_called()
        if is_first and self._is_sampled:
            if self._local is not None and not self._local.is_armed:
                self._local.arm()
            if self._activations is not None:
                self._activations.arm(module)
        self._clock.mark("forward")

    def _note_called(self) -> None:
        self._was_called = True
        if self._num_uncalled >= MAX_UNCALLED:
            self.blind = {what: why for what, why in self.blind.items() if what not in self._blind_while_uncalled}
            self._has_news = True

    def _note_uncalled(self) -> None:
        """A step of a model that was never called: after some, what its own forward would show is told as blindness.

        Such a model is a container of those that are called, or is called inside a compiled function. The time of the
        whole step and of its other phases is seen, so `phases` stays visible.
        """
        self._num_uncalled += 1
        if self._num_uncalled == MAX_UNCALLED:
            parts = ["activations", "modes", "phases", *(["local_gradients"] if self._local is not None else [])]
            self._blind_while_uncalled = frozenset(parts) - self.blind.keys()
            self.blind = {**dict.fromkeys(parts, UNCALLED), **self.blind}
            self._has_news = True

    def _after_forward(self, module: torch.nn.Module, _args: Any, _output: Any) -> None:
        self._disarm()
        if self._clock.current == "forward":
            self._clock.mark("backward")

    def _before_clip(self, parameters: Sequence[torch.Tensor]) -> None:
        self._look_at_holdings()
        for number in self._gradients.holders(parameters):
            self._is_clip_scaled |= self._state.is_scaled(number)
            self._gradients.before_clip(number)

    def _before_optimizer_step(self, read: Callable[[], None], read_outside: Callable[[], None]) -> Callable[..., Any]:
        """Reads at once, or, where the step is given a closure that makes the gradients, after that closure.

        By then this hook has returned, and with it the guard around it: the closure brings its own.
        """

        def before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            own = 1 if args and args[0] is optimizer else 0  # torch hands the optimizer itself on as well
            closure = args[own] if len(args) > own else kwargs.get("closure")
            if not callable(closure):
                read()
                return None

            def closure_then_read() -> Any:
                result = closure()
                read_outside()
                return result

            if len(args) > own:
                return (*args[:own], closure_then_read, *args[own + 1 :]), kwargs
            return args, {**kwargs, "closure": closure_then_read}

        return before

    def _read_optimizer(self, number: int) -> Callable[[], None]:
        def read() -> None:
            self._clock.mark("optimizer")
            self._num_steps_taken += 1
            self._look_at_holdings()
            self._state.note_learning_rates()
            self._state.note_fused_skip(number)
            self._gradients.before_step(number)
            self._clipping.totals.note_step()
            if self._is_sampled:
                self._state.keep_scale()  # it is in the local gradients
            if self._is_sampled and number not in self._updated:
                self._updated.add(number)
                rows, parameters = self._gradients.parameters(number)
                if rows:
                    self._before_update[number] = sample_weights(parameters)

        return read

    def _after_optimizer_step(self, number: int) -> Callable[..., None]:
        def look(*_: Any) -> None:
            before = self._before_update.pop(number, None)
            if before is not None:
                rows, parameters = self._gradients.parameters(number)
                after = sample_weights(parameters)
                self._pieces.add("update_ratio", update_ratio(before, after), rows)
                self._pieces.add("weight_histogram", histogram(after), rows)
            self._clock.mark("other")

        return look

    def take(self, loss: torch.Tensor | float | None) -> ObservedStep:
        """What was seen of the step that ends now."""
        pieces = self._pieces
        clipped = self._clipping.take()
        for total in clipped.total_norms:
            pieces.add_scalar("clip_total_norm", total)
        if isinstance(loss, torch.Tensor):
            value = mean(loss)
            if value is not None:
                pieces.add_scalar("loss", value)
        self._state.add_scale(pieces)
        if self._is_sampled:
            self._look_closely(pieces)
        if not self._was_called:
            self._note_uncalled()
        did_step, self._num_steps_taken = bool(self._num_steps_taken), 0
        self._step += 1
        self._tell_of_sparse_gradients()
        return ObservedStep(
            loss=None if loss is None or isinstance(loss, torch.Tensor) else as_number(_mean(loss), "a loss"),
            lr=self._state.learning_rates(),
            clipped=clipped,
            mode=self._mode,
            is_sampled=self._is_sampled,
            is_clip_scaled=self._is_clip_scaled,
            num_skipped=self._state.count_skipped(did_step=did_step, had_forward=self._mode is not None),
            vector=pieces.pack(),
        )

    def _tell_of_sparse_gradients(self) -> None:
        num = len(self._gradients.sparse_rows)
        if num > self._num_sparse:
            self._num_sparse = num
            self.blind = {**self.blind, "sparse_gradients": f"{num} parameters, whose norms are not taken"}
            self._has_news = True

    def _look_closely(self, pieces: StepVector) -> None:
        if self._local is not None and self._local.is_armed:
            rows, norms = self._local.take()
            if rows:
                pieces.add_scalars("local_grad_norm", norms, [self.table.common[row] for row in rows])
        if self._activations is not None:
            rows, arrays = self._activations.take()
            for name, values in arrays.items():
                pieces.add(name, values, rows)
        for number in range(len(self.optimizers)):
            rows, parameters = self._gradients.parameters(number)
            if rows:
                parts = [own(p).detach() for p in parameters]
                pieces.add_scalars("weight_norm", torch._foreach_norm(parts, 2, dtype=self._norm_type), rows)
        if self._fingerprint is not None:
            whole, layers = self._fingerprint.take()
            pieces.add("fingerprint", whole, range(4))
            pieces.add("layer_fingerprint", layers, self.table.common)
        self.batches.look_closely(pieces)

    def close(self) -> None:
        """Takes every hook out; the model and the optimizers are as before."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self._clipping.close()
        if self._local is not None:
            self._local.disarm()
        self._disarm()


def _lie(layer: Layer) -> tuple[Any, ...]:
    """What a layer keeps when its tensor is replaced or unfrozen."""
    return layer.name, layer.numel, layer.placement, layer.replicas


def _mean(loss: Any) -> Any:
    """A numpy array as its mean; anything else as it is."""
    return loss.mean() if getattr(loss, "ndim", 0) and getattr(loss, "size", 0) else loss
