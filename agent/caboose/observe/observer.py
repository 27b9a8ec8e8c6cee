"""The watch on the model's calls, the hooks on the optimizers, and the values of the step that is ending.

Design
------
All of it runs on the training thread; nothing waits for a device and nothing communicates. Each part owns one kind of
statistic and adds its values to the step's `StepVector`, which leaves the device as one vector.

A step is sampled (see `samples`) at the governor's cadence, and after a number that was not finite. Between sampled
steps there are only the watch on the model's calls, which leaves no trace in the model (see `model_calls`), and the
step hooks of the optimizers, which torch leaves out of an optimizer's pickles and copies. torch iterates over these
hooks while it calls them, and raises into the program if one is removed meanwhile. So when the guard trips, which may
be inside one of them, `retire` leaves them, and the next step boundary removes them (`close`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from caboose.observe import facts
from caboose.observe.clipping import Clipped, ClippingObserver
from caboose.observe.engine_optimizer import EngineOptimizer
from caboose.observe.forward import UNCALLED, Calls, Modes
from caboose.observe.gradients import GradientReader
from caboose.observe.layers import Division, LayerTable, ParameterChanges, group_table
from caboose.observe.model_calls import CallWatch
from caboose.observe.optimizers import OptimizerState
from caboose.observe.phases import PhaseClock
from caboose.observe.samples import Protect, Samples
from caboose.observe.step_vector import StepVector, Vector
from caboose.observe.waits import WaitObserver, in_fsdp2
from caboose.tensors.placement import in_ddp
from caboose.tensors.readable import mean
from caboose.tensors.readback import Utilization, device_phases, memory_bytes
from caboose.tensors.scalars import as_number
from caboose.tensors.subsample import warm_up
from caboose_wire import Layer, Mode

GRAPHS = ("activations", "some_activations")
"""What is not seen where none, or only some, of the compiled graphs can be read."""


@dataclass(slots=True)
class ObservedStep:
    """The values of one step: plain ones at once, device values as a vector that arrives later."""

    loss: float | None
    lr: tuple[float, ...]
    clipped: Clipped
    mode: Mode | None
    is_sampled: bool
    is_clip_scaled: bool
    """Whether the clipper's gradients were still multiplied by the scaler's scale."""
    num_skipped: int | None
    vector: Vector | None


class Observer:
    """Owns every hook of this agent; `close` removes them."""

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
        samples_compiled: bool = False,
    ) -> None:
        self.optimizers = list(optimizers)
        self._model = model
        self._world = world
        self._changes = ParameterChanges(self.optimizers)
        self._has_checked = self._has_checked_untrained = False
        self._takes_norms = True
        self.table = LayerTable(model, optimizers, world)
        self.groups = group_table(optimizers)
        self.wrapper = type(model).__name__
        self.facts = facts.gather(model, optimizers, schedulers=schedulers, scaler=scaler)
        self.blind = dict(self.table.blind)
        self._clock = clock
        self._vector = StepVector()
        self._step = 0
        self._is_sampled = False
        self._is_clip_scaled = False
        self._mode: Mode | None = None
        self._calls = Calls()
        self._blind_while_uncalled: frozenset[str] = frozenset()
        self._num_steps_taken = 0
        self._num_sparse = 0
        self._has_news = False
        # Attached with the first optimizer step, as without code: what is in the gradients may be clipped already.
        self._is_mid_step = any(p.grad is not None for p in self.table.parameters)
        is_double = any(p.dtype in (torch.float64, torch.complex128) for p in self.table.parameters)
        norm_type = torch.float64 if is_double else torch.float32  # a norm must not be narrower than its input
        self._norm_type = norm_type
        is_reduced = world > 1 and in_ddp(model)
        is_sharded = any(layer.placement == "sharded" for layer in self.table.layers)
        self.is_reduced = is_reduced or is_sharded
        """Whether the optimizers get the gradients of all ranks together."""
        sizes = [layer.numel for layer in self.table.layers]
        self._division = Division(sizes, rank, world, is_divided=is_reduced and self.table.is_replicated)
        self._state = OptimizerState(self.optimizers, scaler)
        self._gradients = self._reader()
        self._clipping = ClippingObserver(frozenset(self.table.index), self._before_clip, protect)
        self._waits = WaitObserver(clock, protect, is_distributed=is_reduced or (is_sharded and in_fsdp2(model)))
        self._samples = Samples(
            model, self.table, protect, norm_type, compares_ranks=is_reduced, in_graphs=samples_compiled
        )
        self.batches = self._samples.batches
        self._modes = Modes(model, self.optimizers)
        self._device = self.table.parameters[0].device if self.table.parameters else torch.device("cpu")
        clock.device_phases = device_phases(self._device)
        self.utilization = Utilization(self._device)
        if self._samples.why_no_activations:
            self.blind["activations"] = self._samples.why_no_activations
        protect("warm-up", warm_up)(self._device)
        if self._clipping.is_blind:
            self.blind["clipping"] = "this torch builds its clippers in an unknown way"
        if world > 1 and self._samples.local is None:
            self.blind["local_gradients"] = "seen only under DistributedDataParallel"
        before_forward = protect("forward hook", self._before_forward)
        after_forward = protect("forward hook", self._after_forward)
        self._watch = CallWatch(model, before_forward, after_forward)
        self._handles: list[RemovableHandle] = []
        for number, optimizer in enumerate(self.optimizers):
            if isinstance(optimizer, EngineOptimizer):
                optimizer.watch()
            read = self._read_optimizer(number)
            before = protect("optimizer hook", self._before_optimizer_step(read, protect("optimizer hook", read)))
            after = protect("optimizer hook", self._after_optimizer_step(number))
            self._handles.append(optimizer.register_step_pre_hook(before))
            self._handles.append(optimizer.register_step_post_hook(after))

    def _reader(self) -> GradientReader:
        return GradientReader(
            self.table, self.optimizers, self._division, self._norm_type, self._state.is_scaled, self._world
        )

    def _check_parameters(self) -> None:
        """Called first in a step, so that the optimizers' current parameters are read."""
        if not self._has_checked:
            self._has_checked = True
            if self._changes.have_changed(is_sampled=self._is_sampled):
                self._change_parameters()

    def _change_parameters(self) -> None:
        """The optimizers hold other parameters: watches them if they are the same layers, else reports it."""
        table = LayerTable(self._model, self.optimizers, self._world)
        table.note_partial(self._gradients.partial_rows)
        self.groups = group_table(self.optimizers)
        self._has_news = True
        self.blind = {k: v for k, v in {**self.blind, **table.blind}.items() if k != "parameters"}
        if [_place(layer) for layer in table.layers] != [_place(layer) for layer in self.table.layers]:
            self.blind["parameters"] = "they changed after attach, and not all are watched: call attach again"
            return
        self.table = table
        self._has_checked_untrained = False
        self._modes = Modes(self._model, self.optimizers)
        self._gradients = self._reader()
        self._begin_gradients()
        self._clipping.owned = frozenset(table.index)
        self._samples.change_table(table)
        if self._samples.why_no_activations:
            self.blind["activations"] = self._samples.why_no_activations
            self._blind_while_uncalled -= {"activations"}  # they stay hidden when the model is called

    @property
    def modules(self) -> tuple[Any, ...]:
        """The modules whose activations are read, for the Hello."""
        activations = self._samples.activations
        return tuple(activations.modules) if activations is not None else ()

    @property
    def part(self) -> tuple[int, int]:
        """This rank's rows of the layer table in this step."""
        return self._gradients.part

    def device_bytes(self) -> int | None:
        """Memory in use on the model's device; None on the CPU."""
        return memory_bytes(self._device)

    def take_news(self) -> bool:
        """Whether the Hello is out of date: a new functional activation, a new blind spot."""
        has_news, self._has_news = self._has_news, False
        activations = self._samples.activations
        if activations is not None and activations.has_new_sites:
            activations.has_new_sites = False
            return True
        return has_news

    @property
    def visible(self) -> tuple[str, ...]:
        """What the Hello lists as visible."""
        seen = ["loss", "lr", "phases"]
        if any(layer.placement != "unknown" for layer in self.table.layers):
            seen += ["gradients", "weights"]
        parts = {
            "modes": self._modes,
            "local_gradients": self._samples.local,
            "fingerprint": self._samples.fingerprint,
            "activations": self._samples.activations,
            "clipping": None if self._clipping.is_blind else self._clipping,
        }
        return (*seen, *(name for name, part in parts.items() if part is not None and name not in self.blind))

    def begin(self, *, is_sampled: bool, takes_norms: bool = True) -> None:
        if self._is_sampled:  # what the last sampled step left behind is not for this one
            self._samples.drop()
        self._is_sampled = is_sampled
        if is_sampled and not self._calls.was_called:
            self._samples.begin_step()
        self._vector = StepVector()
        self._mode = None
        self._is_clip_scaled = False
        self._has_checked = False
        self._takes_norms = takes_norms
        self._begin_gradients()

    def _begin_gradients(self) -> None:
        takes_norms = self._takes_norms and not self._is_mid_step
        self._gradients.begin(self._step, self._vector, is_sampled=self._is_sampled, takes_norms=takes_norms)

    def _before_forward(self, module: torch.nn.Module, _args: Any, _kwargs: Any) -> None:
        self._samples.end_forward()  # if the end of the forward before was not seen
        if not torch.is_grad_enabled() or torch._C._get_tracing_state() is not None:
            return  # an evaluation inside the loop, or an export, is not the step's forward
        self._check_parameters()
        if self._is_mid_step:  # it was between two steps
            self._is_mid_step = False
            self._begin_gradients()
        self._gradients.note_forward()
        self._clipping.totals.note_forward()
        is_first, self._mode = self._mode is None, self._modes.read()
        if not self._calls.was_called and self._calls.note_call():
            self.blind = {what: why for what, why in self.blind.items() if what not in self._blind_while_uncalled}
            self._has_news = True
        if is_first and self._is_sampled:
            self._samples.begin_forward(module)
        self._clock.mark("forward")

    def _after_forward(self, _module: torch.nn.Module) -> None:
        self._samples.end_forward()
        if self._clock.current == "forward":
            self._clock.mark("loss")

    def _before_clip(self, parameters: Sequence[torch.Tensor]) -> None:
        self._check_parameters()
        for number in self._gradients.holders(parameters):
            self._is_clip_scaled |= self._state.is_scaled(number)
            self._gradients.before_clip(number)

    def _before_optimizer_step(self, read: Callable[[], None], read_outside: Callable[[], None]) -> Callable[..., Any]:
        """Reads at once; or, if the step is given a closure that makes the gradients, after that closure.

        By then this hook and its guard have returned, so the closure has its own guard.
        """

        def before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            own = 1 if args and args[0] is optimizer else 0  # torch passes the optimizer itself as well
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
            self._check_parameters()
            if not self._has_checked_untrained:
                self._has_checked_untrained = True
                self._has_news |= self.table.note_untrained()
            self._state.note_learning_rates()
            self._state.note_fused_skip(number)
            self._gradients.before_step(number)
            self._clipping.totals.note_step()
            if self._is_sampled:
                self._state.keep_scale()  # it is in the local gradients
                self._samples.before_update(number, self._gradients)

        return read

    def _after_optimizer_step(self, number: int) -> Callable[..., None]:
        optimizer = self.optimizers[number]

        def after(*_: Any) -> None:
            if isinstance(optimizer, EngineOptimizer):
                self._clipping.engine_stepped(optimizer.max_norm, optimizer.total_norm())
            if self._is_sampled:
                self._samples.after_update(number, self._gradients, self._vector)
            self._clock.mark("other")

        return after

    def take(self, loss: torch.Tensor | float | None) -> ObservedStep:
        """The values of the step that ends now."""
        vector = self._vector
        clipped = self._clipping.take()
        for total in clipped.total_norms:
            vector.add_scalar("clip_total_norm", total)
        if isinstance(loss, torch.Tensor):
            value = mean(loss)
            if value is not None:
                vector.add_scalar("loss", value)
        self._state.add_scale(vector)
        if self._is_sampled:
            self._samples.add_to(vector, self._gradients, len(self.optimizers))
            self._note_graphs()
        if not self._calls.was_called and self._calls.note_uncalled():
            parts = [
                *(["activations"] if not self._samples.saw_activations else []),
                "modes",
                "phases",
                *(["local_gradients"] if self._samples.local is not None else []),
            ]
            self._blind_while_uncalled = frozenset(parts) - self.blind.keys()
            self.blind = {**dict.fromkeys(parts, UNCALLED), **self.blind}
            self._has_news = True
        self._is_mid_step = False
        did_step, self._num_steps_taken = bool(self._num_steps_taken), 0
        self._step += 1
        self._note_sparse_gradients()
        self._note_partial_gradients()
        return ObservedStep(
            loss=None if loss is None or isinstance(loss, torch.Tensor) else as_number(_mean(loss), "a loss"),
            lr=self._state.learning_rates(),
            clipped=clipped,
            mode=self._mode,
            is_sampled=self._is_sampled,
            is_clip_scaled=self._is_clip_scaled,
            num_skipped=self._state.count_skipped(did_step=did_step, had_forward=self._mode is not None),
            vector=vector.pack(),
        )

    def _note_graphs(self) -> None:
        """What of the compiled graphs could not be read in the step that ends."""
        why = self._samples.why_not_in_graphs()
        if why is not None and why != {k: v for k, v in self.blind.items() if k in GRAPHS}:
            self.blind = {**{k: v for k, v in self.blind.items() if k not in GRAPHS}, **why}
            self._has_news = True

    def _note_sparse_gradients(self) -> None:
        num = len(self._gradients.sparse_rows)
        if num > self._num_sparse:
            self._num_sparse = num
            self.blind = {**self.blind, "sparse_gradients": f"{num} parameters, whose norms are not taken"}
            self._has_news = True

    def _note_partial_gradients(self) -> None:
        if self.table.note_partial(self._gradients.partial_rows):
            self.blind = {**self.blind, **self.table.blind}
            self._has_news = True

    def retire(self) -> None:
        """Removes everything but the optimizers' hooks, which may be running."""
        self._watch.remove()
        self._clipping.close()
        self._waits.close()
        self._samples.close()

    def close(self) -> None:
        """Removes everything; the model and the optimizers are as before. Not for an optimizer's hook to call."""
        self.retire()
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        for optimizer in self.optimizers:
            if isinstance(optimizer, EngineOptimizer):
                optimizer.release()


def _place(layer: Layer) -> tuple[Any, ...]:
    """What stays the same when a layer's tensor is replaced or unfrozen."""
    return layer.name, layer.numel, layer.placement, layer.replicas


def _mean(loss: Any) -> Any:
    """A numpy array as its mean; anything else as it is."""
    return loss.mean() if getattr(loss, "ndim", 0) and getattr(loss, "size", 0) else loss
