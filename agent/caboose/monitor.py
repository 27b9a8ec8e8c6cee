"""What `attach` returns: the few calls that a training loop makes.

Design
------
The monitor only joins the components that `attach` built. Every public call goes through the guard, so none of them
raises. A disabled monitor is the same class without components, and needs no torch.

Where file descriptors, threads or memory are missing at attach, the monitor waits: it has a shell and no other
components, counts the steps, and tries again at a step boundary every `RETRY_SECONDS`. What the shell has is used from
then on, so that loaders and functions wrapped in between stay valid.

With rollback `auto` there is also a brake (`rollback.brake`). It is outside the guard: a rank that has agreed to act
must act, even if observing has failed, and its two exceptions are meant to end the run.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from caboose.components import Components, Shell
from caboose.early_stopping.stopper import Stopper
from caboose.governor import Governor
from caboose.guard import is_from_signal_handler
from caboose.observe.loader import FetchWatch, WatchedLoader
from caboose.report import live_monitors, resources
from caboose.report.exits import Exit
from caboose.report.identity import Identity
from caboose.report.signals import GOODBYE_SECONDS

if TYPE_CHECKING:
    import torch

    from caboose.checkpoints.checkpointer import SavedCheckpoint
    from caboose.hunting.result import HuntResult
    from caboose.observe.parts import Outline
    from caboose.report.past_steps import PastStep
    from caboose.report.run_summary import RunSummary
    from caboose.report.words import Advice

logger = logging.getLogger("caboose")

BROKEN_SECONDS = 5.0
"""How long `close` waits for a background save when the run ends with an error: other ranks may be gone."""

Batch = TypeVar("Batch")
Loss: TypeAlias = "torch.Tensor | float | None"


class Monitor:
    """Watches one rank. Made by `caboose.attach`."""

    def __init__(
        self,
        parts: Components | None,
        shell: Shell | None = None,
        *,
        build_later: Callable[[], Components] | None = None,
    ) -> None:
        """Without parts every call does nothing, until `build_later` has built them, if it is given."""
        shell = shell or Shell()
        self.guard = shell.guard
        self.clock = shell.clock
        self._skip = shell.skip
        self._count = shell.count
        self._build_later = build_later
        self._next_try = time.monotonic() + resources.RETRY_SECONDS
        self.on_close: Callable[[Monitor], None] = lambda _: None
        self._stopper: Stopper | None = None
        self._place(parts)
        # Bound once, so that no wrapper is made per call.
        self._guarded_step = self.guard.protect("step", self._end_step)
        self._guarded_event = self.guard.protect("event", self._send_event)

    def _place(self, parts: Components | None) -> None:
        self.identity: Identity | None = None if parts is None else parts.session.identity
        self._governor = Governor(1, 1.0) if parts is None else parts.governor
        self._session = None if parts is None else parts.session
        self._observer = None if parts is None else parts.observer
        self._observe = None if parts is None else parts.observe
        self._reporter = None if parts is None else parts.reporter
        self._thin = None if parts is None else parts.reporter.thin
        self._brake = None if parts is None else parts.brake
        self._skipper = None if parts is None else parts.skipper
        self._checkpointer = None if parts is None else parts.checkpointer
        self._hunter = None if parts is None else parts.hunter
        if parts is not None and self._stopper is None:
            self._stopper = Stopper(parts.session.identity.rank, parts.session.identity.world)
        self._make_hunter = None if parts is None else parts.make_hunter
        self._is_closed = parts is None

    @property
    def is_active(self) -> bool:
        """Whether steps are being reported, or will be as soon as there are resources for it."""
        return self._build_later is not None or not (self._is_closed or self.guard.is_tripped)

    @property
    def model_step(self) -> int:
        """The age of the weights: the step, less what rollbacks took back."""
        return self._count.model_step

    @property
    def current_step(self) -> int:
        """The last step that has ended, as it is reported."""
        return self._count.step

    @property
    def num_rollbacks(self) -> int:
        """Rollbacks of this run since attach."""
        return self._count.num_rollbacks

    @property
    def overhead(self) -> float:
        """The agent's measured share of the step, on the training thread and in the sender's."""
        return self._governor.share

    @property
    def num_queued(self) -> int:
        """Reports that wait to be sent."""
        return self._session.sender.num_queued if self._session is not None and self._session.sender is not None else 0

    def step(
        self,
        loss: "Loss | Mapping[str, Loss]" = None,
        *,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        num_samples: int | None = None,
        num_tokens: int | None = None,
    ) -> None:
        """The step boundary: call it once per optimizer step, on every rank.

        Under gradient accumulation `loss` is the mean of the micro-batches. Of several models it is a mapping with the
        keys that attach was given; the loss of the first one is also the job's. `step` overrides the count of
        optimizer steps; `num_samples` weights this rank's loss in the mean over ranks.
        """
        if self._is_closed:
            if self._build_later is not None:
                self._wait(self._build_later, step)
            return
        number = self._count.advance(step)
        thin = self._thin
        if (
            thin is not None
            and thin.is_open
            and metrics is None
            and thin.end_step(number, loss, num_samples, num_tokens)
        ):
            return
        self._guarded_step(loss, metrics, num_samples, num_tokens)
        if self.guard.is_tripped and self._observer is not None:
            self._observer.close()
        if self._hunter is not None and self._hunter.bad_step is not None:
            self._hunter.hunt_alone(self._brake)
        if self._brake is not None:
            self._brake.at_boundary(number)

    def _end_step(
        self,
        loss: "Loss | Mapping[str, Loss]",
        metrics: Mapping[str, float] | None,
        num_samples: int | None,
        num_tokens: int | None,
    ) -> None:
        reporter = self._reporter
        if reporter is None:
            return
        try:
            if self._checkpointer is not None:
                self._checkpointer.report_finished()
            reporter.report(loss, metrics, num_samples, num_tokens)
        finally:  # the step is over even if it could not be reported
            reporter.begin_step()

    def _wait(self, build: Callable[[], Components], step: int | None) -> None:
        """A step that is not watched; tries to build the parts if it is time to."""
        self._count.advance(step)
        now = time.monotonic()
        if now < self._next_try:
            return
        self._next_try = now + resources.RETRY_SECONDS
        try:
            if resources.shortage(resources.NUM_THREADS + 1):
                return
            self._place(build())
        except Exception as error:  # this is in the middle of someone's run
            if is_from_signal_handler(error):
                raise
            if resources.is_shortage(error):
                return
            logger.warning("caboose: this run is not watched: %r", error)
        else:
            logger.warning("caboose: this run is watched from step %d on", self._count.step + 1)
        self._build_later = None

    def watch(self, loader: Iterable[Batch]) -> "WatchedLoader[Batch]":
        """The same loader, with the wait for each batch timed and the batches counted."""
        if self._session is not None and self._session.hello is not None:
            from caboose.observe import facts

            known = self._session.hello.facts
            found = {**known, **facts.of_loader(loader)}
            if found != known:
                self._session.update_hello(facts=found)
        protect = self.guard.protect
        clock, guarded_mark = self.clock, protect("watch", self.clock.mark)

        def mark(phase: str) -> None:
            if clock.is_on:
                guarded_mark(phase)

        return WatchedLoader(
            loader,
            self._skip,
            mark=mark,
            on_epoch=protect("watch", self._begin_epoch),
            on_batch=protect("watch", self._see_batch),
        )

    def watch_router(
        self, module: "torch.nn.Module", *, num_experts: int | None = None, top_k: int | None = None
    ) -> None:
        """Counts the experts that this module chooses, on sampled steps. Before the loop.

        For routers of mixture-of-experts layers that are not recognised by themselves. The module returns the chosen
        experts, or a logit of each. ValueError if `num_experts` and `top_k` are neither given nor its attributes.
        """
        if self._is_closed:
            return
        from caboose.observe.routers import router_of

        router = router_of(module, num_experts, top_k)
        if self._observer is not None and not self._observer.watch_router(module, router):
            logger.warning("caboose: watch_router(): activations of this module are not read, so neither is its choice")

    def watch_fetches(self) -> FetchWatch:
        """For a framework, which fetches the batches of its loader itself: what it calls around each fetch."""
        protect = self.guard.protect
        return FetchWatch(
            mark=protect("watch", self.clock.mark),
            on_epoch=protect("watch", self._begin_epoch),
            on_batch=protect("watch", self._see_batch),
            skip=self._skip,
        )

    def _begin_epoch(self, number: int | None = None) -> None:
        if self._observer is not None:
            self._observer.batches.begin_epoch(number)

    def _see_batch(self, batch: Any) -> None:
        if self._observer is not None:
            self._observer.batches.see(batch)
        if self._hunter is not None:
            self._hunter.see(batch)

    @property
    def can_checkpoint(self) -> bool:
        """Whether `checkpoint` has a directory to write to."""
        return self._checkpointer is not None

    def checkpoint(self, *, raise_errors: bool = False) -> "SavedCheckpoint | None":
        """Saves a checkpoint of the whole run (`attach(checkpoints=...)`). All ranks call it, at the same step.

        A failure is in the result (`state`, `error`), and is raised only with `raise_errors`. Where Caboose is
        disabled, nothing is saved and None is returned.
        """
        if self.identity is None:
            return None
        if self._checkpointer is None:
            raise RuntimeError(
                "monitor.checkpoint(): there is no directory to write to; use attach(..., checkpoints=directory)"
            )
        return self._checkpointer.save(self._count.step, self._count.model_step, raise_errors=raise_errors)

    def validation(self, loss: "torch.Tensor | float | None" = None, /, **metrics: float) -> None:
        """Reports a validation result, with whatever metrics it had."""
        fields = metrics if loss is None else {"loss": loss, **metrics}
        self.event("validation", **fields)
        if self._stopper is not None:
            self.guard.protect("early stopping", self._note_validation)(fields)

    def _note_validation(self, fields: Mapping[str, Any]) -> None:
        if self._stopper is None:
            return
        self._stopper.note(fields)
        if self._session is not None and fields.get("loss") is not None:
            known, value = self._session.best_validation, float(fields["loss"])
            self._session.best_validation = value if known is None or value < known else known

    def summary(self) -> "RunSummary | None":
        """What the run adds up to: losses, gradient norm, clipping, validation; as `close` returns it."""
        return None if self._session is None else self._session.summary()

    def early_stopping(
        self,
        patience: int = 5,
        *,
        metric: str = "loss",
        mode: str = "min",
        min_delta: float = 0.0,
        seconds: float = 60.0,
    ) -> None:
        """How `should_stop` judges: validations without a new best, of which metric. Before the loop, on every rank.

        `seconds` is how long a rank waits for the values of the others.
        """
        if self._stopper is not None:
            self._stopper.configure(patience, metric=metric, mode=mode, min_delta=min_delta, seconds=seconds)

    @property
    def should_stop(self) -> bool:
        """Whether validation has not improved for `patience` validations; the same answer on all ranks.

        Read it on every rank, at the same place of the loop, like a collective. It depends only on the values that
        `validation` was given, which must be the same on every rank; if they differ, it stays False and logs so once.
        A second fall after a rise (double descent) is waited for. False where Caboose is disabled.
        """
        return self._stopper is not None and self._stopper.should_stop

    @property
    def is_best(self) -> bool:
        """Whether the last validation is the best so far: the moment to save the best checkpoint. As `should_stop`."""
        return self._stopper is not None and self._stopper.is_best

    def findings(self) -> "tuple[Advice, ...]":
        """What the daemon reported of this run last: advice for people and logs, on rank 0.

        It arrives some time after the step, at each rank at another moment, and is empty on other ranks. Never let it
        decide about a collective, a step or an exit: ranks would differ. `should_stop` is made for that.
        """
        return () if self._session is None else self._session.advice()

    def hunt_nan(self, loss_fn: "Callable[..., Any] | None" = None, batch: Any = None) -> "HuntResult | None":
        """Runs a batch again on this rank, with every module and operation watched, and names what broke first.

        Without `batch` it is the last one that the model was given, which is kept with `attach(..., hunt=True)`.
        `loss_fn` is as in `caboose.inspect`: `loss_fn(model, batch)`, or a criterion; without it, the model's own
        loss or the sum of its outputs is used. Best called before `optimizer.step()`, while the weights are finite.
        Never raises, and changes nothing; None where Caboose is disabled.
        """
        if self._is_closed or self._observer is None or self._make_hunter is None:
            return None
        hunter = self._hunter or self._make_hunter()
        return hunter.hunt_now(self._count.step, loss_fn, batch, self._observer.batches)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is run within the block is not of the training: nothing of it is observed, its time is left out.

        For an evaluation that trains something, or a trial of your own; the tools of `caboose` do it themselves.
        """
        began = time.perf_counter()
        try:
            with self.guard.paused(), contextlib.ExitStack() as stack:
                if self._observer is not None:
                    from caboose.observe import model_calls

                    for module in self._observer.called:
                        stack.enter_context(model_calls.paused(module))
                yield
        finally:
            self.clock.leave_out(time.perf_counter() - began)

    def event(self, kind: str, /, **fields: Any) -> None:
        """Reports an event to the daemon: a data switch, the end of warm-up, a saved checkpoint."""
        if not self._is_closed:
            self._guarded_event(kind, fields)

    def _send_event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if self._session is not None:
            self._session.event(kind, fields)

    def close(self, error: BaseException | None = None) -> "RunSummary | None":
        """Removes every hook, sends the last reports, and returns the summary, which rank 0 also prints.

        Calling it again does nothing more. None where Caboose is disabled.

        Takes under a second, unless a checkpoint is still being written in the background: then it waits for that.

        `error` is the exception that ends the run, if one does; at exit it is found without being passed. While an
        exception is being handled, as in a `finally`, the last message waits until it is known whether it ends the run.
        """
        self._build_later = None
        if self._is_closed:
            return self.summary()
        if self._checkpointer is not None:
            is_broken = bool(error or live_monitors.exit_error() or sys.exc_info()[1])
            self._checkpointer.wait(BROKEN_SECONDS if is_broken else None)
            self.guard.protect("checkpoint", self._checkpointer.report_finished)()
        self._is_closed = True
        try:
            for part in (self._brake, self._skipper, self._hunter, self._observer):
                if part is not None:
                    part.close()
        finally:
            session = self._session
            self._let_go()
            if session is not None:
                live_monitors.close_session(session.close, error)
            self.on_close(self)
        return self.summary()

    def _let_go(self) -> None:
        """Nothing here keeps the model alive any more, also while the last message waits."""
        kept = self.identity, self._governor, self._session, self._checkpointer
        self._place(None)
        self.identity, self._governor, self._session, self._checkpointer = kept
        self.guard.on_trip = lambda: None
        if self._session is not None:
            self._session.let_go()

    def train(self, outline: "Outline") -> None:
        """From now on these models and optimizers are watched, in the same run; in the middle of a step.

        Not for the hook of an optimizer that is watched already.
        """
        before, reporter, session = self._observer, self._reporter, self._session
        if before is None or reporter is None or session is None or self._observe is None or self._is_closed:
            return
        observer = self._observe(outline)
        observer.facts["objective"] = before.facts["objective"]
        if self._hunter is not None:
            observer.blind["hunt"] = "only the model that was attached first is run again"
        before.close()
        reporter.change_observer(observer)
        self._observer = observer
        session.replace_hello(
            layers=observer.table.layers,
            groups=observer.groups,
            modules=observer.modules,
            wrapper=observer.wrapper,
            visible=observer.visible,
            blind=observer.blind,
            facts=observer.facts,
            parts=observer.parts,
        )

    def report_past(self, steps: "Sequence[PastStep]") -> None:
        """Reports steps that were taken before this monitor was attached; before its own first step."""
        if self._reporter is not None and not self._is_closed:
            self.guard.protect("step", self._reporter.report_past)(steps)

    def describe(self, *, blind: Mapping[str, str], facts: Mapping[str, Any], seen: Sequence[str] = ()) -> None:
        """Changes what the Hello states: what is not seen, what of that is `seen` now, and facts of the run."""
        if self._observer is not None and self._session is not None and self._session.hello is not None:
            known = self._session.hello
            stated = {what: why for what, why in {**known.blind, **blind}.items() if what not in seen}
            if (stated, {**known.facts, **facts}) == (known.blind, known.facts):
                return
            for what in seen:
                self._observer.blind.pop(what, None)
            self._observer.blind.update(blind)
            self._observer.facts.update(facts)
            self._session.update_hello(blind=stated, facts={**known.facts, **facts})

    def say_goodbye(self, signal_name: str) -> None:
        """Sends the Bye of a process that a signal ends, and nothing else; on any thread."""
        if not self._is_closed and self._session is not None:
            self._session.say_goodbye(signal_name)

    def leave(self, reason: Exit) -> None:
        """Sends the Bye of a process that ends at once, and prints the last line; on any thread."""
        if not self._is_closed and self._session is not None:
            self._session.close(reason, GOODBYE_SECONDS)

    def abandon(self) -> None:
        """In a forked child: the socket and the reports belong to the parent."""
        self._is_closed = True
        self._build_later = None
        self.guard.switch_off()
        if self._session is not None:
            self._session.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)
