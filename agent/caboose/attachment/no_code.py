"""Attaches to an unchanged script: finds optimizers, model and loss through torch.

Design
------
Everything runs on the script's own threads, in this order:

1. when the script has imported torch (`imports`), hooks are installed: torch's global optimizer step hooks, and
   around `Optimizer.__init__`, `autograd.backward` (`losses`) and `GradScaler.step`;
2. the first optimizer that is made starts the search for its model (`discovery`), which ends with the first forward;
3. the first optimizer step attaches, before that step: `attach(model, optimizers)`; 4. every end of an optimizer step
is a step boundary. A step that a GradScaler skips is one too: with a NaN loss it skips them all, and that must be
reported.

The optimizer that steps first is attached with its model. Others that exist by then and hold other parameters (a GAN,
an actor and its critics) are parts of the same job: one joins, before its first step, if that falls into the first step
of all; a later one once it has stepped between two steps of those that are watched, so that a second phase of training
is not taken for a partner. The parts that are known keep their places, because reports name layers by their rows. When
a step ends is in `turns`, whose loss it is in `observe.losses`. A tensor that an optimizer updates and no module holds
(a temperature) is a part without a model. Copies that no optimizer holds, as targets and averages, are no part.

Parts with losses of their own are trained against or for each other: that is reported as the objective, because no such
loss is meant to fall. An optimizer that cannot join is reported as not seen. Where training goes on with others than
those that are watched (`succession`), a new phase has begun: the monitor is closed, and attached to them.

If the script or a framework's callback calls `attach`, this one closes; `integrations.frameworks` adds those callbacks.
A child that is forked once there is an optimizer reports nothing; one that is forked before may be a rank
(`integrations.processes` has the ranks that the script starts). Nothing here raises into the script: each entry is
behind a guard, and a failure to attach ends the attempt. A script that ended well without a step that could be watched
gets one line about that, unless it only started other processes.
"""

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from caboose.attachment import attach, imports
from caboose.attachment.members import Members
from caboose.attachment.succession import Succession
from caboose.attachment.turns import PATIENCE, Pace
from caboose.guard import Guard
from caboose.monitor import Monitor
from caboose.observe.patches import Patches
from caboose.settings import environment
from caboose.tensors.scalars import as_number
from caboose_wire.fields import MAX_PARTS

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("caboose")

ENVIRONMENTS = ("gymnasium", "gym", "pettingzoo", "dm_env", "envpool")
NOBODY = -1
"""The part that losses of optimizers belong to that are not watched."""
UNSEEN = {
    "data_wait": "python -m caboose does not see the loader; monitor.watch(loader) times it",
    "validation": "python -m caboose sees it where a framework validates or the script logs val/loss to TensorBoard or "
    "W&B; monitor.validation(loss) reports it",
}
FIRST_STEPS = "the first {} steps of the optimizers that went on after step {:,}"
TURNS = 3
"""Steps in which several models had losses of their own, after which it is no accident."""


def begin(env: Mapping[str, str], *, is_child: bool = False) -> Guard | None:
    """Attaches to what this process trains from now on; returns its guard. Imports no torch, and never raises.

    `is_child`: the script runs in the process that started this one.
    """
    try:
        if environment.is_disabled(env):
            return None
        environment.resolve(env)
    except ValueError as error:
        logger.warning("caboose: this run is not watched: %s", error)
        return None
    global _automatic
    automatic = _automatic = AutoAttach(has_others=is_child)
    install = automatic.guard.protect("automatic attach", automatic.install)
    imports.when_imported("torch", lambda _: install())
    return automatic.guard


_automatic: "AutoAttach | None" = None


def note_processes() -> None:
    """The script starts other processes, which may be those that train."""
    if _automatic is not None:
        _automatic.has_others = True


def end(*, reports_unseen: bool) -> None:
    """What a process trains that the script has started is over; it may run no exit handlers."""
    if _automatic is not None:
        _automatic.guard.protect("automatic attach", _automatic.finish)(reports_unseen=reports_unseen)


def report_event(kind: str, **fields: Any) -> None:
    """An event of the run that is watched without code; nothing where the program has attached itself."""
    if _automatic is not None:
        _automatic.report(kind, **fields)


def report_validation(loss: Any) -> None:
    """The loss of a validation of the run that is watched without code; nothing where the program attached itself."""
    if _automatic is not None:
        _automatic.report_validation(loss)


class AutoAttach:
    """One process, from the import of torch on."""

    def __init__(self, *, has_others: bool = False) -> None:
        self.guard = Guard(on_trip=self._shut_down)
        self.has_others = has_others
        """Whether other processes run parts of this script: training nothing here means nothing then."""
        self._patches = Patches()
        self._is_on = False
        self._has_forked = False
        self._has_installed = False
        self._monitor: Monitor | None = None
        self._is_attaching = False
        self._num_steps = 0
        self._num_made = 0
        self._num_ended = 0
        self._num_turns = 0
        self._is_adversarial = False
        self._has_attached = False
        self._first_step = 0
        """The last step before the models that are watched."""
        self._outermost = 0
        """The optimizer whose step has begun and not ended, if it is not inside the step of another."""
        self._only: torch.optim.Optimizer | None = None
        """The one that is watched, while no other takes part: each of its steps is one of the run."""
        self._succession = Succession()
        self._validated: tuple[int, float] | None = None
        """The step of the last validation, and its loss."""
        self._members = Members()
        self._pace = Pace(())
        self._strange: set[int] = set()
        """Optimizers that stepped since the last step of one that is watched."""
        self._awaited: set[int] = set()
        """Optimizers that join if they step within the first step."""
        self._partners: set[int] = set()
        """Optimizers that have stepped between two steps of those that are watched: they join."""
        self._is_unwatched_stated = False
        self._overlaps: dict[int, bool] = {}
        self._stepped_before: set[int] = set()
        """Optimizers that stepped before there was a model."""

    def install(self) -> None:
        """Installs every hook; called when torch has been imported."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        from caboose.attachment.discovery import CallWatcher
        from caboose.attachment.engines import EngineWatch
        from caboose.observe.losses import BackwardLosses

        self._losses = BackwardLosses(self.guard.protect)
        self._watcher = CallWatcher(self.guard.protect)
        self._known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._without_model: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._note_optimizer = self.guard.protect("automatic attach", self._optimizer_made)
        self._protect_with(self.guard)

        is_compiling = torch.compiler.is_compiling

        def before(optimizer: "torch.optim.Optimizer", *_: Any) -> None:
            if optimizer is self._only and not is_compiling():
                self._outermost = self._outermost or id(optimizer)
            elif self._is_on and not is_compiling() and not self._engines.owns(optimizer):
                self._before_step(optimizer)

        def after(optimizer: "torch.optim.Optimizer", *_: Any) -> None:
            if optimizer is self._only and not is_compiling():
                self._only_stepped(id(optimizer))
            elif self._is_on and not is_compiling() and not self._engines.owns(optimizer):
                self._after_step(optimizer)

        self._engines = EngineWatch(self.guard.protect, before, after, self._engine_made)

        # These two stay in torch's lists: removing one while torch iterates over the list raises in the script.
        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(after)
        self._losses.start()
        self._patches.put(torch.optim.Optimizer, "__init__", self._watch_making)
        self._patches.put(torch.amp.GradScaler, "step", self._watch_scaler)
        if environment.samples_compiled(os.environ):  # what is compiled before the first optimizer step is read too
            from caboose.observe import compiled

            compiled.install()
            self._has_installed = True
        attach.before_attach.append(self._give_way)
        os.register_at_fork(after_in_parent=self._note_fork, after_in_child=self._forked)
        atexit.register(self._report_unseen, os.getpid())
        self._is_on = True

    def _protect_with(self, guard: Guard) -> None:
        """The guard that handles failures and measures time: the monitor's once there is one."""
        self._losses.protect_with(guard.protect)
        self._take_losses = guard.protect("loss", self._step_losses)
        self._take_loss = guard.protect("loss", self._losses.take_mean)
        self._joins = guard.protect("automatic attach", self._join_if_partner)
        self._ends_last_step = guard.protect("automatic attach", self._step_begins)
        self._ends_step = guard.protect("automatic attach", self._step_ended)

    def stop(self) -> None:
        """Stops; a monitor that is attached stays so."""
        self._is_on = False
        self._only = None
        if self._has_installed:
            from caboose.observe import compiled

            self._has_installed = False
            compiled.uninstall()
        self._patches.undo()
        self._losses.stop()
        self._watcher.stop()
        if self._give_way in attach.before_attach:
            attach.before_attach.remove(self._give_way)

    def _shut_down(self) -> None:
        self.stop()
        if self._monitor is not None:
            self._monitor.close()

    def _note_fork(self) -> None:
        self._has_forked = True

    def _forked(self) -> None:
        if self._is_on and self._num_made:
            self.stop()  # what is trained belongs to the parent, and a monitor handles the fork itself

    def finish(self, *, reports_unseen: bool) -> None:
        """Reports the step that is open, and stops; logs why nothing was watched, if an optimizer was made."""
        if not self._is_on:
            return
        self._end_open_step(os.getpid())
        if reports_unseen and self._num_made:  # else the process may have been started for something else
            self._report_unseen(os.getpid())
        self.stop()

    def _report_unseen(self, pid: int) -> None:
        """At the exit of a script that ended well and in which nothing was ever watched: rank 0 logs the reason."""
        if not self._is_on or attach.has_attached() or os.getpid() != pid or hasattr(sys, "last_type"):
            return
        if self.has_others or (self._has_forked and not self._num_made and not self._losses.has_any):
            return
        if (os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0") != "0":
            return
        if not self._num_made:
            why = "the script made no torch.optim.Optimizer"
        elif not self._num_ended:
            why = "no optimizer took a step that Python sees (compiled or captured steps are not seen)"
        else:
            why = "no module holds the parameters that were updated"
        text = (
            "caboose: nothing was watched: %s. Call caboose.attach(model, optimizer) and monitor.step(loss) in the loop"
        )
        logger.warning(text, why)

    def _end_open_step(self, pid: int) -> None:
        """At exit: reports the step that is open, where a part has stepped in it. What ended the run may be in it."""
        if self._is_on and os.getpid() == pid and self._pace.is_open:
            self._boundary()

    def _give_way(self) -> None:
        """The script calls attach itself."""
        if self._is_on and not self._is_attaching:
            self._shut_down()

    def report(self, kind: str, **fields: Any) -> None:
        """Reports an event, if this has attached."""
        if self._is_on and self._monitor is not None:
            self._monitor.event(kind, step=self._monitor.current_step, **fields)

    def report_validation(self, loss: Any) -> None:
        """Reports a validation, if this has attached; once, also if it is logged to several places."""
        monitor = self._monitor
        value = as_number(loss, "a validation loss")
        if not self._is_on or monitor is None or monitor.identity is None or value is None:
            return
        monitor.describe(blind={}, facts={}, seen=("validation",))
        if monitor.identity.rank == 0 and (monitor.current_step, value) != self._validated:
            self._validated = monitor.current_step, value
            monitor.validation(value)

    def _watch_making(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if self._is_on:
                self._note_optimizer(optimizer)

        return __init__

    def _optimizer_made(self, optimizer: "torch.optim.Optimizer") -> None:
        from caboose.attachment.discovery import holds_parameters, parameter_ids

        self._num_made += 1
        self._forget_gone(id(optimizer))
        self._succession.note_made(id(optimizer), self._num_steps)
        if any(not parameter_ids(other) & parameter_ids(optimizer) for other in self._own()):
            self._tell_losses_apart()
        self._known.add(optimizer)
        self._losses.watch_scalers()
        if holds_parameters(optimizer):
            self._watcher.expect(optimizer)

    def _forget_gone(self, own: int) -> None:
        """A new optimizer has the identity of one that is gone: what that one did is not its own."""
        self._overlaps.pop(own, None)
        for waiting in (self._strange, self._awaited, self._partners, self._stepped_before):
            waiting.discard(own)
        self._pace.forget(own)

    def _tell_losses_apart(self) -> None:
        """Several models may be trained: from now on each loss is asked which optimizers it is for."""
        from caboose.observe.loss_owners import LossOwners

        if self._losses.owners is None:
            self._losses.owners = LossOwners(self._holders)
        self._losses.owners.forget()

    def _holders(self) -> dict[int, frozenset[int]]:
        """The optimizers that hold each parameter, both by identity."""
        from caboose.attachment.discovery import parameter_ids

        found: dict[int, frozenset[int]] = {}
        for optimizer in self._own():
            for parameter in parameter_ids(optimizer):
                found[parameter] = found.get(parameter, frozenset()) | {id(optimizer)}
        return found

    def _engine_made(self, optimizer: "torch.optim.Optimizer") -> None:
        """A DeepSpeed engine exists, which steps with this optimizer."""
        self._num_made += 1
        self._only = None
        self._losses.watch_engines()

    def _watch_scaler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            ended = self._num_ended
            result = original(scaler, optimizer, *args, **kwargs)
            if self._is_on and self._num_ended == ended and hasattr(optimizer, "param_groups"):
                self._before_step(optimizer)
                self._after_step(optimizer)
            return result

        return step

    def _before_step(self, optimizer: "torch.optim.Optimizer") -> None:
        self._only = None
        if self._ends_last_step(optimizer):
            self._boundary()
        if self._awaited or self._partners:
            self._joins(optimizer)

    def _after_step(self, optimizer: "torch.optim.Optimizer") -> None:
        if self._ends_step(optimizer):
            self._boundary()
            if self._is_on and self._is_alone(id(optimizer)):
                self._only = optimizer

    def _is_alone(self, own: int) -> bool:
        """Whether a step is that of this optimizer, as long as no other is made or steps; called between two steps."""
        others = self._awaited or self._partners or self._strange or self._succession.num_steps or self._outermost
        is_one = own in self._members and self._members.num_optimizers == 1 and self._pace.is_set_by(own)
        return self._losses.owners is None and not others and is_one

    def _only_stepped(self, own: int) -> None:
        """The end of a step of the only optimizer, without what several ones would ask for."""
        self._num_ended += 1
        if self._outermost == own:
            self._outermost = 0
        self._num_steps += 1
        monitor = self._monitor
        if monitor is not None:
            monitor.step(self._take_loss())
            if not monitor.is_active:
                self.stop()

    def _step_begins(self, optimizer: "torch.optim.Optimizer") -> bool:
        own = id(optimizer)
        self._outermost = self._outermost or own
        if self._monitor is None:
            if optimizer not in self._without_model:
                self._attach_to(optimizer)
            if self._monitor is None:
                self._stepped_before.add(own)
            return False
        if own in self._members:
            return self._pace.begins(own)
        if self._replaces(optimizer):
            self._release()
            self._attach_to(optimizer)
        return False

    def _replaces(self, optimizer: "torch.optim.Optimizer") -> bool:
        """Whether it begins a new phase, as one that was made since the last step for what is watched."""
        return (
            self._outermost == id(optimizer)
            and self._num_steps - self._first_step >= PATIENCE
            and not self._pace.is_open
            and self._succession.was_made_after(id(optimizer), self._num_steps)
            and optimizer not in self._without_model
            and self._is_inner(optimizer)
        )

    def _step_ended(self, optimizer: "torch.optim.Optimizer") -> bool:
        self._num_ended += 1
        own, outer = id(optimizer), self._outermost
        if own == outer:
            self._outermost = 0
        if self._monitor is None:
            if optimizer in self._without_model:
                self._take_loss_of(optimizer)
            return False
        if own not in self._members:
            if own == outer or not self._succession.is_inside(own, outer):
                self._stranger_stepped(optimizer)
            return False
        if self._strange:
            self._meet_strangers()
        if self._succession.num_steps:
            self._succession.clear()
        if self._losses.owners is not None:
            self._members.add_loss(own, *self._losses.settle(*self._members.part_of(own)))
        return self._pace.ended(own)

    def _stranger_stepped(self, optimizer: "torch.optim.Optimizer") -> None:
        """An optimizer that is not watched."""
        loss = self._take_loss_of(optimizer)
        if not self._is_inner(optimizer):
            self._strange.add(id(optimizer))
            if self._losses.owners is None:
                self._tell_losses_apart()
        if optimizer in self._without_model or not self._succession.keep(optimizer, loss):
            return
        if self._watcher.models_of(optimizer):
            self._release()
            self._watcher.expect(optimizer)
        else:  # it fits an input, a latent: what is watched goes on after it
            self._without_model.add(optimizer)
            self._succession.clear()

    def _take_loss_of(self, optimizer: "torch.optim.Optimizer") -> "torch.Tensor | None":
        """The losses of the step of one that is not watched are not those of the others."""
        if self._losses.owners is not None:
            return self._losses.settle(NOBODY, frozenset((id(optimizer),)))[0]
        loss = self._losses.mean_so_far()
        self._losses.set_aside()
        return loss

    def _is_inner(self, optimizer: "torch.optim.Optimizer") -> bool:
        """Whether it updates what an optimizer that is watched holds."""
        from caboose.attachment.discovery import parameter_ids

        if id(optimizer) not in self._overlaps:
            self._overlaps[id(optimizer)] = self._members.hold_any(parameter_ids(optimizer))
        return self._overlaps[id(optimizer)]

    def _meet_strangers(self) -> None:
        """Optimizers have stepped in turn with those that are watched: they join before their next step."""
        self._partners |= self._strange
        self._strange.clear()
        if self._monitor is not None and self._members.is_full and not self._is_unwatched_stated:
            self._is_unwatched_stated = True
            why = f"models of other optimizers are trained in turn with these; {MAX_PARTS} parts are watched"
            self._monitor.describe(blind={"other_models": why}, facts={})

    def _boundary(self) -> None:
        if self._monitor is None:
            return
        self._pace.boundary()
        self._awaited.clear()
        self._num_steps += 1
        self._monitor.step(self._take_losses())
        if not self._monitor.is_active:
            self.stop()

    def _step_losses(self) -> Any:
        """What the step minimised: one loss, or one for each part."""
        if self._losses.owners is None:
            return self._losses.take_mean()
        self._losses.end_step()
        self._num_turns += self._members.num_own_losses > 1
        if self._num_turns == TURNS and not self._is_adversarial:
            self._is_adversarial = True
            self._state_adversarial()
        return self._members.take_losses()

    def _state_adversarial(self) -> None:
        if self._monitor is not None and not os.environ.get("CABOOSE_OBJECTIVE") and _objective(os.environ) is None:
            self._monitor.describe(blind={}, facts={"objective": "adversarial"})

    def _attach_to(self, optimizer: "torch.optim.Optimizer") -> None:
        from caboose.attachment.discovery import trained_with
        from caboose.observe.parts import Outline, TrainedPart

        engine = self._engines.model_of(optimizer)
        models = [engine] if engine is not None else self._watcher.models_of(optimizer)
        if not models:
            self._without_model.add(optimizer)
            logger.info("caboose: no module holds what this %s updates; it is not watched", type(optimizer).__name__)
            return
        optimizers = trained_with(models[0], optimizer, self._own())
        if not self._has_attached:
            self._num_steps = self._engines.steps_taken(optimizer) or _steps_taken(optimizer)
        outline = Outline.of_parts([TrainedPart("", tuple(models), tuple(optimizers))])
        num_missed, past = self._succession.num_steps, self._succession.take(optimizers)
        missed = {"first_steps": FIRST_STEPS.format(num_missed, self._num_steps)} if num_missed > len(past) else {}
        try:
            self._is_attaching = True
            with attach.blind_to(**UNSEEN, **missed):
                monitor = attach.attach(
                    outline,  # type: ignore[arg-type]  # what attach itself makes of a model
                    optimizers,
                    scaler=self._losses.scaler,
                    start_step=self._num_steps,
                    objective=_objective(os.environ),
                )
        except Exception:
            self.stop()
            raise  # to the guard, which logs it
        finally:
            self._is_attaching = False
        if not self._has_attached:
            self._has_attached = True
            atexit.register(self._end_open_step, os.getpid())  # called before attach's own, which closes the monitor
        self._monitor = monitor
        self._protect_with(monitor.guard)
        self._members = Members()
        self._members.add(models, optimizers)
        self._awaited = {id(other) for other in self._others(optimizers)}
        if not self._awaited:
            self._losses.owners = None
        self._pace = Pace({*map(id, optimizers), *self._awaited})
        for early in self._awaited & self._stepped_before:
            self._pace.ended(early)
            self._partners.add(early)
        self._overlaps.clear()
        self._watcher.forget(optimizers)
        if not self._awaited:
            self._watcher.stop()
        if past:
            monitor.report_past(past)
            self._num_steps += len(past)
        self._first_step = self._num_steps

    def _others(self, optimizers: "Sequence[torch.optim.Optimizer]") -> "list[torch.optim.Optimizer]":
        """The optimizers of other parameters."""
        from caboose.attachment.discovery import parameter_ids

        held = {parameter for optimizer in optimizers for parameter in parameter_ids(optimizer)}
        return [o for o in self._own() if o not in optimizers and held.isdisjoint(parameter_ids(o))]

    def _own(self) -> "list[torch.optim.Optimizer]":
        """The optimizers of the program: not those inside an engine, nor those that only step others."""
        return [optimizer for optimizer in self._known if not self._engines.owns(optimizer)]

    def _join_if_partner(self, optimizer: "torch.optim.Optimizer") -> None:
        """Before a step: one that steps in turn with those that are watched joins them."""
        own = id(optimizer)
        if self._monitor is None or own in self._members or own not in self._awaited | self._partners:
            return
        self._awaited.discard(own)
        self._partners.discard(own)
        from caboose.attachment.discovery import parameter_ids, trained_with

        if self._members.is_full:
            return
        models = self._watcher.models_of(optimizer)
        free = [o for o in self._own() if id(o) not in self._members]
        optimizers = trained_with(models[0], optimizer, free) if models else [optimizer]
        if not parameter_ids(optimizer) or any(self._is_inner(o) for o in optimizers):
            return
        self._members.add(models, optimizers)
        self._overlaps.clear()
        if self._losses.owners is None:
            self._tell_losses_apart()
        self._watcher.forget(optimizers)
        self._monitor.train(self._members.outline())

    def _release(self) -> None:
        """Ends the watch of a phase that is over."""
        if self._monitor is not None:
            self._monitor.close()
        self._monitor = self._only = None
        self._num_turns = 0
        self._is_adversarial = False
        self._members = Members()
        for waiting in (self._strange, self._awaited, self._partners, self._stepped_before):
            waiting.clear()
        self._is_unwatched_stated = False
        self._protect_with(self.guard)


def _objective(env: Mapping[str, str]) -> str | None:
    """The objective, where the process shows it: environments to act in are there only for reinforcement learning."""
    if env.get("CABOOSE_OBJECTIVE"):
        return None  # attach reads it
    return "reinforcement" if any(name in sys.modules for name in ENVIRONMENTS) else None


def _steps_taken(optimizer: "torch.optim.Optimizer") -> int:
    """The step of a resumed run, if the optimizer's state counts steps; waits for a device once at most."""
    for state in optimizer.state.values():
        if isinstance(state, Mapping) and "step" in state:
            return max(0, int(state["step"]))
    return 0
