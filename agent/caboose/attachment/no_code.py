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

With several optimizers a step ends when each of them has stepped. If the first one steps again before the others, the
step ends too, and from then on only those that had stepped are expected.

An optimizer that was not attached is not watched: the losses before its steps are its own. If it has taken `PATIENCE`
steps while the attached ones took none, training has reached a new phase, and the search starts again. If it steps in
turn with the attached ones, several models are trained against or for each other: that is reported, as what is not seen
and as the objective, because no such loss is meant to fall.

If the script or a framework's callback calls `attach`, this one closes; `integrations.frameworks` adds those callbacks.
A forked child reports nothing. Nothing here raises into the script: each entry is behind a guard, and a failure to
attach ends the attempt. A script that ended well without a step that could be watched gets one line about that.
"""

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from caboose.attachment import attach, imports
from caboose.guard import Guard
from caboose.monitor import Monitor
from caboose.observe.patches import Patches
from caboose.settings import environment

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("caboose")

ENVIRONMENTS = ("gymnasium", "gym", "pettingzoo", "dm_env", "envpool")
UNSEEN = {
    "data_wait": "python -m caboose does not see the loader; monitor.watch(loader) times it",
    "validation": "python -m caboose does not see it; monitor.validation(loss) reports it",
}
TURNS = 3
"""Times that another model's optimizer steps between two steps of the watched one, after which it is no accident."""
PATIENCE = 20
"""Steps of other optimizers, without one of the attached, after which those are taken to have replaced them."""


def begin(env: Mapping[str, str]) -> Guard | None:
    """Attaches to what this process trains from now on; returns its guard. Imports no torch, and never raises."""
    try:
        if environment.is_disabled(env):
            return None
        environment.resolve(env)
    except ValueError as error:
        logger.warning("caboose: this run is not watched: %s", error)
        return None
    global _automatic
    automatic = _automatic = AutoAttach()
    install = automatic.guard.protect("automatic attach", automatic.install)
    imports.when_imported("torch", lambda _: install())
    return automatic.guard


_automatic: "AutoAttach | None" = None


def report_event(kind: str, **fields: Any) -> None:
    """An event of the run that is watched without code; nothing where the program has attached itself."""
    if _automatic is not None:
        _automatic.report(kind, **fields)


class AutoAttach:
    """One process, from the import of torch on."""

    def __init__(self) -> None:
        self.guard = Guard(on_trip=self._shut_down)
        self._patches = Patches()
        self._is_on = False
        self._has_installed = False
        self._monitor: Monitor | None = None
        self._is_attaching = False
        self._num_steps = 0
        self._num_made = 0
        self._num_ended = 0
        self._num_strange = 0
        self._num_turns = 0
        self._attached: set[int] = set()
        self._expected: set[int] = set()
        self._stepped: list[int] = []

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

        def before(optimizer: "torch.optim.Optimizer", *_: Any) -> None:
            if self._is_on and not torch.compiler.is_compiling() and not self._engines.owns(optimizer):
                self._before_step(optimizer)

        def after(optimizer: "torch.optim.Optimizer", *_: Any) -> None:
            if self._is_on and not torch.compiler.is_compiling() and not self._engines.owns(optimizer):
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
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._report_unseen, os.getpid())
        self._is_on = True

    def _protect_with(self, guard: Guard) -> None:
        """The guard that handles failures and measures time: the monitor's once there is one."""
        self._losses.protect_with(guard.protect)
        self._take_loss = guard.protect("loss", self._losses.take_mean)
        self._ends_last_step = guard.protect("automatic attach", self._step_begins)
        self._ends_step = guard.protect("automatic attach", self._step_ended)

    def stop(self) -> None:
        """Stops; a monitor that is attached stays so."""
        self._is_on = False
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

    def _forked(self) -> None:
        if self._is_on:
            self.stop()  # the monitor belongs to the parent too, and handles the fork itself

    def _report_unseen(self, pid: int) -> None:
        """At the exit of a script that ended well and in which nothing was ever watched: logs the reason."""
        if not self._is_on or attach.has_attached() or os.getpid() != pid or hasattr(sys, "last_type"):
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

    def _give_way(self) -> None:
        """The script calls attach itself."""
        if self._is_on and not self._is_attaching:
            self._shut_down()

    def report(self, kind: str, **fields: Any) -> None:
        """Reports an event, if this has attached."""
        if self._is_on and self._monitor is not None:
            self._monitor.event(kind, step=self._monitor.current_step, **fields)

    def _watch_making(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if self._is_on:
                self._note_optimizer(optimizer)

        return __init__

    def _optimizer_made(self, optimizer: "torch.optim.Optimizer") -> None:
        self._num_made += 1
        self._known.add(optimizer)
        self._losses.watch_scalers()
        if self._monitor is None:
            self._watcher.expect(optimizer)

    def _engine_made(self, optimizer: "torch.optim.Optimizer") -> None:
        """A DeepSpeed engine exists, which steps with this optimizer."""
        self._num_made += 1
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
        if self._ends_last_step(optimizer):
            self._boundary()

    def _after_step(self, optimizer: "torch.optim.Optimizer") -> None:
        if self._ends_step(optimizer):
            self._boundary()

    def _step_begins(self, optimizer: "torch.optim.Optimizer") -> bool:
        if self._monitor is None:
            if optimizer not in self._without_model:
                self._attach_to(optimizer)
            return False
        if self._stepped and self._stepped[0] == id(optimizer):
            self._expected = set(self._stepped)
            return True
        return False

    def _step_ended(self, optimizer: "torch.optim.Optimizer") -> bool:
        self._num_ended += 1
        if self._monitor is None:
            return False
        if id(optimizer) in self._attached:
            if self._num_strange:
                self._take_turns()
            self._num_strange = 0
            self._stepped.append(id(optimizer))
            return self._expected.issubset(self._stepped)
        self._losses.set_aside()
        if optimizer not in self._without_model:
            self._num_strange += 1
            if self._num_strange >= PATIENCE:
                self._release(optimizer)
        return False

    def _take_turns(self) -> None:
        """An optimizer of another model stepped between two steps of the watched one."""
        self._num_turns += 1
        if self._num_turns == TURNS and self._monitor is not None:
            why = "models of other optimizers are trained in turn with this one, and are not watched"
            is_set = bool(os.environ.get("CABOOSE_OBJECTIVE"))
            self._monitor.describe(blind={"other_models": why}, facts={} if is_set else {"objective": "adversarial"})

    def _boundary(self) -> None:
        if self._monitor is None:
            return
        self._stepped.clear()
        self._num_steps += 1
        self._monitor.step(self._take_loss())
        if not self._monitor.is_active:
            self.stop()

    def _attach_to(self, optimizer: "torch.optim.Optimizer") -> None:
        from caboose.attachment.discovery import trained_with

        model = self._engines.model_of(optimizer) or self._watcher.model_of(optimizer)
        if model is None:
            self._without_model.add(optimizer)
            logger.info("caboose: no module holds what this %s updates; it is not watched", type(optimizer).__name__)
            return
        self._watcher.stop()
        optimizers = trained_with(model, optimizer, self._known)
        self._num_steps = max(self._num_steps, self._engines.steps_taken(optimizer) or _steps_taken(optimizer))
        try:
            self._is_attaching = True
            with attach.blind_to(**UNSEEN):
                monitor = attach.attach(
                    model,
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
        self._monitor = monitor
        self._protect_with(monitor.guard)
        self._attached = {id(each) for each in optimizers}
        self._expected = set(self._attached)

    def _release(self, successor: "torch.optim.Optimizer") -> None:
        if self._monitor is not None:
            self._monitor.close()
        self._monitor = None
        self._num_strange = self._num_turns = 0
        self._stepped.clear()
        self._protect_with(self.guard)
        self._watcher.expect(successor)


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
