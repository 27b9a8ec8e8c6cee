"""The watch on the model's calls, the hooks on the optimizers, and the values of the step that is ending.

Design
------
All of it runs on the training thread; nothing waits for a device and nothing communicates. Each part owns one kind of
statistic and adds its values to the step's `StepVector`, which leaves the device as one vector.

A step is sampled (see `samples`) at the governor's cadence, and after a number that was not finite. Where steps are so
short that even phases and modes cost too much, some steps are *thin*: nothing is done at the model's calls and around
its backward, and only the learning rates are read when an optimizer steps.

Between sampled steps there are only the watch on the model's calls, which leaves no trace in the model (see
`model_calls`), and the step hooks of the optimizers, which torch leaves out of an optimizer's pickles and copies. torch
iterates over these hooks while it calls them, and raises into the program if one is removed meanwhile. So when the
guard trips, which may be inside one of them, `retire` leaves them, and the next step boundary removes them (`close`).
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from caboose.guard import Protect
from caboose.observe import averaging, facts
from caboose.observe.clipping import Clipped, ClippingObserver
from caboose.observe.engine_optimizer import EngineOptimizer
from caboose.observe.forward import UNCALLED, Calls, Modes
from caboose.observe.forward_watch import ForwardWatch
from caboose.observe.gradients import GradientReader
from caboose.observe.kept_gradients import KeptGradients
from caboose.observe.layers import Division, LayerTable, ParameterChanges, group_table, plain_name
from caboose.observe.loss_graph import LossGraph
from caboose.observe.optimizers import OptimizerState
from caboose.observe.parts import Outline, of_parts, wire_parts
from caboose.observe.phases import PhaseClock
from caboose.observe.routers import Router
from caboose.observe.samples import Samples
from caboose.observe.step_hooks import StepHooks
from caboose.observe.step_vector import StepVector, Vector
from caboose.observe.waits import WaitObserver, around_tensor_parallel, in_fsdp2
from caboose.tensors.placement import in_ddp
from caboose.tensors.readable import mean, on_host
from caboose.tensors.readback import Utilization, device_phases, memory_bytes
from caboose.tensors.scalars import as_number
from caboose.tensors.subsample import warm_up
from caboose_wire import Layer, Mode, Part

GRAPHS = ("activations", "some_activations")
"""What is not seen where none, or only some, of the compiled graphs can be read."""

IDLE_STEPS = 100
"""Steps of a loop in which no optimizer stepped, after which none is taken to; more than any usual accumulation."""


@dataclass(slots=True)
class ObservedStep:
    """The values of one step: plain ones at once, device values as a vector that arrives later."""

    loss: float | None
    lr: tuple[float, ...]
    clipped: Clipped
    mode: Mode | None
    part_losses: tuple[float | None, ...]
    """Of a job with parts: those that were given as plain numbers."""
    is_sampled: bool
    is_clip_scaled: bool
    """Whether the clipper's gradients were still multiplied by the scaler's scale."""
    num_skipped: int | None
    vector: Vector | None


PlainStep = tuple[float | None, tuple[float, ...], Mode | None]
"""Loss, learning rates and mode of a step of which nothing else was measured."""


class Observer:
    """Owns every hook of this agent; `close` removes them."""

    def __init__(
        self,
        outline: Outline,
        *,
        clock: PhaseClock,
        protect: Protect,
        rank: int = 0,
        world: int = 1,
        schedulers: Sequence[Any] = (),
        scaler: Any = None,
        samples_compiled: bool = False,
        averages_weights: bool = False,
    ) -> None:
        """`averages_weights`: the optimizers step on the gradients of their own rank, also under DDP."""
        model, optimizers = outline.model, outline.optimizers
        self.optimizers = list(optimizers)
        self._model = model
        self._outline = outline
        self._world = world
        self._changes = ParameterChanges(self.optimizers)
        self._has_checked = self._has_checked_untrained = False
        self._takes_norms = True
        self._is_thin = False
        self.table = LayerTable(model, optimizers, world, outline.parts)
        self.groups = group_table(optimizers, outline.parts)
        self.wrapper = type(outline.called[0]).__name__
        self.facts = facts.gather(model, optimizers, schedulers=schedulers, scaler=scaler)
        self.blind = dict(self.table.blind)
        self._clock = clock
        self._vector = StepVector()
        self._step = 0
        self._is_sampled = False
        self._is_clip_scaled = False
        self._mode: Mode | None = None
        self._num_evaluations = self._num_train_evaluations = 0
        """Forwards of this step in eval mode."""
        self._part_modes: dict[Modes, Mode] = {}
        self._calls = Calls()
        self._blind_while_uncalled: frozenset[str] = frozenset()
        self._num_steps_taken = 0
        self._num_sparse = 0
        self._has_news = False
        is_judged = bool(optimizers) and (world == 1 or in_ddp(model)) and not averages_weights
        self._kept = KeptGradients(_parameters(optimizers[0]) if is_judged else ())
        self._num_idle = 0
        """Steps without one of an optimizer, since the start; -1 once that is known."""
        # Attached with the first optimizer step, as without code: what is in the gradients may be clipped already.
        self._is_mid_step = any(p.grad is not None for p in self.table.parameters)
        is_double = any(p.dtype in (torch.float64, torch.complex128) for p in self.table.parameters)
        norm_type = torch.float64 if is_double else torch.float32  # a norm must not be narrower than its input
        self._norm_type = norm_type
        is_reduced = world > 1 and in_ddp(model) and not averages_weights
        is_sharded = any(layer.placement == "sharded" for layer in self.table.layers)
        self.is_reduced = is_reduced or is_sharded
        """Whether the optimizers get the gradients of all ranks together."""
        sizes = [layer.numel for layer in self.table.layers]
        self._division = Division(sizes, rank, world, is_divided=is_reduced and self.table.is_replicated)
        self._state = OptimizerState(self.optimizers, scaler)
        self._gradients = self._reader()
        self._clipping = ClippingObserver(frozenset(self.table.index), self._before_clip, protect)
        in_parts = is_sharded and around_tensor_parallel(model)
        knows_waits = is_reduced or (is_sharded and not in_parts and in_fsdp2(model))
        self._waits = WaitObserver(clock, protect, is_distributed=knows_waits)
        self._waits.is_partly_known = in_parts
        if self._kept.is_watching:
            self._waits.note_backward = self._kept.note_backward
        self._loss_graph = LossGraph()
        self._read_roots = protect("loss", self._read_loss)
        self._samples = Samples(
            model,
            self.table,
            protect,
            norm_type,
            compares_ranks=is_reduced,
            name_of=_names_in_parts if outline.parts else plain_name,
            in_graphs=samples_compiled,
        )
        self.batches = self._samples.batches
        self._modes = _modes(outline, outline.called)
        self._was_called: set[int] = set()
        """The models that were called in this step, by identity."""
        self._device = self.table.parameters[0].device if self.table.parameters else torch.device("cpu")
        self._is_on_host = self._device.type == "cpu"
        self._has_scaler = self._state.has_scaler
        clock.device_phases = device_phases(self._device)
        self.utilization = Utilization(self._device)
        if self._samples.why_no_activations:
            self.blind["activations"] = self._samples.why_no_activations
        protect("warm-up", warm_up)(self._device)
        if self._clipping.is_blind:
            self.blind["clipping"] = "this torch builds its clippers in an unknown way"
        if outline.parts:
            self.blind["clipping"] = "of several parts: which of them was clipped, and to what norm, is not told apart"
        if world > 1 and averages_weights:
            self.blind |= dict.fromkeys(("fingerprint", "gradient_norm", "local_gradients"), averaging.WHY)
        elif world > 1 and self._samples.local is None:
            self.blind["local_gradients"] = "seen only under DistributedDataParallel"
        before_forward = protect("forward hook", self._before_forward)
        after_forward = protect("forward hook", self._after_forward)
        self._forwards = ForwardWatch(outline.called, before_forward, after_forward)
        self._hooks = StepHooks(self.optimizers, self._before_step, self._after_step, self._state, protect)

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
        table = LayerTable(self._model, self.optimizers, self._world, self._outline.parts)
        table.note_partial(self._gradients.partial_rows)
        self.groups = group_table(self.optimizers, self._outline.parts)
        self._has_news = True
        self.blind = {k: v for k, v in {**self.blind, **table.blind}.items() if k != "parameters"}
        if [_place(layer) for layer in table.layers] != [_place(layer) for layer in self.table.layers]:
            self.blind["parameters"] = "they changed after attach, and not all are watched: call attach again"
            return
        self.table = table
        self._has_checked_untrained = False
        self._modes = _modes(self._outline, self.called)
        self._gradients = self._reader()
        self._begin_gradients()
        self._clipping.owned = frozenset(table.index)
        self._samples.change_table(table)
        if self._samples.why_no_activations:
            self.blind["activations"] = self._samples.why_no_activations
            self._blind_while_uncalled -= {"activations"}  # they stay hidden when the model is called

    @property
    def called(self) -> tuple[torch.nn.Module, ...]:
        """The modules whose calls are seen."""
        return self._forwards.modules

    @property
    def is_sampled(self) -> bool:
        """Whether this step is."""
        return self._is_sampled

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the job, for the Hello."""
        return wire_parts(self._outline.parts, self.table.layers, len(self.groups))

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
        if activations is None:
            return has_news
        if activations.is_half and "computes_in" not in self.facts:
            self.facts["computes_in"] = "float16"
            has_news = True
        has_news |= activations.has_new_sites
        activations.has_new_sites = False
        return has_news

    @property
    def visible(self) -> tuple[str, ...]:
        """What the Hello lists as visible."""
        seen = ["loss", "lr", "phases"]
        if any(layer.placement != "unknown" for layer in self.table.layers):
            seen += ["gradients", "weights"]
        elif any(isinstance(optimizer, EngineOptimizer) for optimizer in self.optimizers):
            seen.append("gradient_norm")  # of all gradients, over all ranks
        parts = {
            "modes": self._modes,
            "local_gradients": self._samples.local,
            "fingerprint": self._samples.fingerprint,
            "activations": self._samples.activations,
            "clipping": None if self._clipping.is_blind else self._clipping,
        }
        return (*seen, *(name for name, part in parts.items() if part is not None and name not in self.blind))

    def begin(self, *, is_sampled: bool, takes_norms: bool = True, takes_phases: bool = True) -> None:
        is_thin = not (is_sampled or takes_norms or takes_phases) and self.can_be_thin
        if is_thin and self._is_thin and self._vector.is_empty:
            return  # as the step before: nothing was kept of it
        if self._is_sampled:  # what the last sampled step left behind is not for this one
            self._samples.drop()
        if is_thin is not self._is_thin:
            self._is_thin = is_thin
            self._clock.is_on = not is_thin
            self._forwards.turn(on=not is_thin)
            self._waits.turn(on=not is_thin)
            self._clipping.turn(on=not is_thin)
            self._hooks.turn(thin=is_thin)
        self._is_sampled = is_sampled
        self._waits.read_roots = self._read_roots if is_sampled else None
        if is_sampled and not self._calls.was_called:
            self._samples.begin_step()
        self._vector = StepVector()
        self._mode = None
        self._num_evaluations = self._num_train_evaluations = 0
        self._was_called.clear()
        self._part_modes.clear()
        self._is_clip_scaled = False
        self._has_checked = False
        self._takes_norms = takes_norms
        self._begin_gradients()

    @property
    def can_be_thin(self) -> bool:
        """Whether nothing depends on seeing every forward: a scaler's skipped steps, parts and the first one do."""
        return self._calls.was_called and not self._has_scaler and not self._outline.parts

    @property
    def is_thin(self) -> bool:
        """Whether phases and modes are not measured in this step."""
        return self._is_thin

    @property
    def has_more_than_numbers(self) -> bool:
        """Whether a step has values that are known only to `take`: of a device, or of several models."""
        return not self._is_on_host or self._has_scaler or bool(self._outline.parts)

    @property
    def optimizer_state(self) -> OptimizerState:
        """Has the learning rates of a thin step when it ends."""
        return self._state

    def _begin_gradients(self) -> None:
        takes_norms = self._takes_norms and not self._is_mid_step
        self._gradients.begin(self._step, self._vector, is_sampled=self._is_sampled, takes_norms=takes_norms)

    def watch_router(self, module: torch.nn.Module, router: Router) -> bool:
        """Whether the experts that this module chooses are counted from now on."""
        is_known = self._samples.watch_router(module, router)
        self._has_news |= is_known
        return is_known

    def _before_forward(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self._samples.end_forward()  # if the end of the forward before was not seen
        if torch._C._get_tracing_state() is not None:
            return  # an export is not the step's forward
        if not torch.is_grad_enabled():
            self._note_evaluation(module)
            return
        self._check_parameters()
        if self._is_mid_step:  # it was between two steps
            self._is_mid_step = False
            self._begin_gradients()
        self._gradients.note_forward()
        self.batches.see_input(args or kwargs)
        self._clipping.totals.note_forward()
        is_first = id(module) not in self._was_called
        self._was_called.add(id(module))
        self._note_mode(module)
        if not self._forwards.is_settled:
            self._forwards.settle(module)
        if not self._calls.was_called and self._calls.note_call():
            self.blind = {what: why for what, why in self.blind.items() if what not in self._blind_while_uncalled}
            self._has_news = True
        if is_first and self._is_sampled:
            self.batches.note_shape(args or kwargs)
            self._samples.begin_forward(module)
        self._clock.mark("forward")

    def _after_forward(self, _module: torch.nn.Module) -> None:
        self._samples.end_forward()
        if self._clock.current == "forward":
            self._clock.mark("loss")

    def _before_clip(self, parameters: Sequence[torch.Tensor]) -> None:
        self._check_parameters()
        self._kept.note_clip()
        for number in self._gradients.holders(parameters):
            self._is_clip_scaled |= self._state.is_scaled(number)
            self._gradients.before_clip(number)

    def _before_step(self, number: int) -> None:
        """An optimizer's step begins."""
        self._state.note_learning_rates()
        self._clock.mark("optimizer")
        self._num_steps_taken += 1
        self._check_parameters()
        if self._kept.is_watching and number == 0:
            self._kept.before_step()
            if self._kept.are_kept:
                self._find("keeps_gradients")
        if not self._has_checked_untrained:
            self._has_checked_untrained = True
            self._has_news |= self.table.note_untrained()
        self._state.note_fused_skip(number)
        self._gradients.before_step(number)
        self._clipping.totals.note_step()
        if self._is_sampled:
            self._state.keep_scale()  # it is in the local gradients
            self._samples.before_update(number, self._gradients)

    def _read_loss(self, roots: Any) -> None:
        """The first backward of a sampled step begins; the loss of one of several parts is not told apart."""
        self._waits.read_roots = None
        if not self._outline.parts and self._loss_graph.read(roots, self._vector):
            self.facts.update(self._loss_graph.facts)
            self._has_news = True

    def _after_step(self, number: int) -> None:
        """An optimizer's step has ended."""
        optimizer = self.optimizers[number]
        if self._kept.is_watching and number == 0:
            self._kept.after_step()
        elif self._waits.note_backward is not None:
            self._waits.note_backward = None
        if isinstance(optimizer, EngineOptimizer):
            self._clipping.engine_stepped(optimizer.max_norm, optimizer.total_norm())
        if self._is_sampled:
            self._samples.after_update(number, self._gradients, self._vector)
        self._clock.mark("other")

    def _note_mode(self, module: torch.nn.Module) -> None:
        """The mode of the model that is called; of several parts, each by its best call of the step.

        One may be called in eval mode on purpose to train another with it.
        """
        modes = self._modes[id(module)]
        mode = modes.read()
        if not self._outline.parts:
            self._mode = self._after_evaluations(mode)
            return
        known = self._part_modes.get(modes)
        if known is None or (_in_eval(mode) < _in_eval(known)):
            self._part_modes[modes] = mode
        found = self._part_modes.values()
        self._mode = Mode(
            all(m.is_training for m in found),
            sum(m.num_norms_in_eval for m in found),
            sum(m.num_dropouts_in_eval for m in found),
        )

    def _note_evaluation(self, module: torch.nn.Module) -> None:
        """A call without gradients: an evaluation inside of the loop, before or after the forward of the step."""
        if self._outline.parts or not self._modes[id(module)].acts_in_training:
            return
        self._num_train_evaluations += 1
        if self._mode is not None:
            self._mode = msgspec.structs.replace(self._mode, num_train_evaluations=self._num_train_evaluations)

    def _after_evaluations(self, mode: Mode) -> Mode:
        """The mode, with the number of forwards that came before it in the step and were an evaluation's."""
        self._num_evaluations += not mode.is_training
        if not mode.is_training or not (self._num_evaluations or self._num_train_evaluations):
            return mode
        return msgspec.structs.replace(
            mode, num_evaluations=self._num_evaluations, num_train_evaluations=self._num_train_evaluations
        )

    def _add_losses(self, vector: StepVector, loss: Any) -> tuple[float | None, ...]:
        """Adds the losses of the parts to the vector; returns those that are plain numbers, in the parts' order."""
        plain: list[float | None] = []
        for number, given in enumerate(of_parts(loss, self._outline.parts)):
            plain.append(
                None if given is None or isinstance(given, torch.Tensor) else as_number(_mean(given), "a loss")
            )
            value = mean(given) if isinstance(given, torch.Tensor) else None
            if value is not None:
                vector.add("part_loss", value.reshape(1), [number])
        return tuple(plain)

    def take_plain(self, loss: Any) -> PlainStep | None:
        """The values of the step that ends now, if there are no others and they are on the host; else None."""
        if self._is_sampled or self._clipping.has_seen or not (self._vector.is_empty and self._calls.was_called):
            return None
        if self._is_mid_step or self._has_scaler or not self._is_on_host or self._outline.parts:
            return None
        if isinstance(loss, torch.Tensor) and not loss.is_cpu:
            return None
        number = None if loss is None else self.loss_on_host(loss)
        self._note_idle(did_step=bool(self._num_steps_taken))
        self._num_steps_taken = 0
        self._step += 1
        if self._gradients.sparse_rows:
            self._note_sparse_gradients()
        return number, self._state.learning_rates(), self._mode

    def loss_on_host(self, loss: Any) -> float | None:
        """A loss as a number; None if it cannot be read, or only by waiting for a device."""
        if isinstance(loss, torch.Tensor):
            return on_host(loss) if loss.is_cpu else None
        return as_number(_mean(loss), "a loss")

    def end_thin(self, num_steps: int) -> None:
        """So many thin steps have ended, of which their rates and losses were all there was."""
        self._num_steps_taken = 0
        self._step += num_steps

    def step_input(self) -> "weakref.ref[torch.Tensor] | None":
        """What the step's model was called with, or its batch, while it exists; also of a thin step."""
        kept = next((watch.last_call.args for watch in self._forwards if watch.last_call.args), None)
        if kept is not None:
            self.batches.see_input(kept)
        return self.batches.reachable()

    def take(self, loss: Any) -> ObservedStep:
        """The values of the step that ends now."""
        vector = self._vector
        clipped = self._clipping.take()
        if self._outline.parts:  # see `blind`
            clipped = Clipped()
        for total in clipped.total_norms:
            vector.add_scalar("clip_total_norm", total)
        losses: tuple[float | None, ...] = ()
        if self._outline.parts:
            losses = self._add_losses(vector, loss)
        elif isinstance(loss, torch.Tensor):
            value = mean(loss)
            if value is not None:
                vector.add_scalar("loss", value)
        self._state.add_scale(vector)
        if self._is_sampled:
            self._samples.add_to(vector, self._gradients, len(self.optimizers))
            self._note_graphs()
        if not self._calls.was_called:
            self._look_inside()
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
        self._note_idle(did_step=did_step)
        self._note_sparse_gradients()
        self._note_partial_gradients()
        return ObservedStep(
            loss=None if losses or loss is None or isinstance(loss, torch.Tensor) else as_number(_mean(loss), "a loss"),
            lr=self._state.learning_rates(),
            clipped=clipped,
            mode=self._mode,
            part_losses=losses,
            is_sampled=self._is_sampled,
            is_clip_scaled=self._is_clip_scaled,
            num_skipped=self._state.count_skipped(did_step=did_step, had_forward=self._mode is not None),
            vector=vector.pack(),
        )

    def _look_inside(self) -> None:
        """A step has ended, and no module was called since the start; one whose begin was not seen shows nothing."""
        if self._is_mid_step or not self._num_steps_taken or self._outline.parts:
            return
        if self._forwards.look_inside(set(map(id, self.table.parameters))):
            self._modes = _modes(self._outline, self.called)

    def _note_idle(self, *, did_step: bool) -> None:
        """A step of the loop has ended, with or without one of an optimizer."""
        if self._num_idle < 0:
            return
        if did_step or self._has_scaler:
            if self._num_idle >= IDLE_STEPS:
                self._find("never_steps", is_so=False)
            self._num_idle = -1
            return
        self._num_idle += 1
        if self._num_idle == IDLE_STEPS and self._mode is not None:
            self._find("never_steps")

    def _find(self, name: str, *, is_so: bool = True) -> None:
        """A fact about the loop that only its first steps show."""
        self.facts[name] = is_so
        self._has_news = True

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
        self._forwards.remove()
        self._clipping.close()
        self._waits.close()
        self._samples.close()

    def close(self) -> None:
        """Removes everything; the model and the optimizers are as before. Not for an optimizer's hook to call."""
        self.retire()
        self._hooks.close()


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _modes(outline: Outline, called: Sequence[torch.nn.Module]) -> dict[int, Modes]:
    """How to read the modes when a module is called, by its identity; those of one part together."""
    if not outline.parts:
        modes = Modes(outline.model, outline.optimizers)
        return {id(module): modes for module in called}
    return {id(model): Modes(model, part.optimizers) for part in outline.parts for model in part.models}


def _names_in_parts(name: str) -> str:
    """A module's name as it is reported: as the user wrote it, behind the name of its part."""
    part, _, rest = name.partition(".")
    return f"{part}.{plain_name(rest)}" if rest else part


def _in_eval(mode: Mode) -> tuple[bool, int]:
    return not mode.is_training, mode.num_norms_in_eval + mode.num_dropouts_in_eval


def _place(layer: Layer) -> tuple[Any, ...]:
    """What stays the same when a layer's tensor is replaced or unfrozen."""
    return layer.name, layer.numel, layer.placement, layer.replicas


def _mean(loss: Any) -> Any:
    """A numpy array as its mean; anything else as it is."""
    return loss.mean() if getattr(loss, "ndim", 0) and getattr(loss, "size", 0) else loss
