"""The boundaries of thin steps: on the training thread, at the lowest cost.

Design
------
Thin steps follow one another in runs. The model's work has emptied the caches when a step ends, so what counts on a
step of 2 ms is less how much is done than how many places in memory it touches: within a run a boundary takes the time,
the loss and the rates, and appends one row. All it needs is in the slots of one object. What is done at every other
boundary is done every `STEPS` of them. A step that needs more, or that has to wake the sender, ends the run.
"""

import sys
import time
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from caboose.governor import Governor
from caboose.guard import Guard, is_from_signal_handler
from caboose.observe.phases import PhaseClock
from caboose.report.session import Session
from caboose.report.thin_run import MAX_ROWS, Row, ThinRun
from caboose.tensors.scalars import kept_count, scheduler_steps

if TYPE_CHECKING:
    from caboose.observe.observer import Observer
    from caboose.report.sender import Sender

STEPS = 32
"""Thin steps whose costs are added up before the governor gets them."""

Account = Callable[[float, float, int], None]
"""Called with the agent's seconds, the steps' seconds and the number of steps."""


class ThinSteps:
    """Makes the rows of thin steps."""

    __slots__ = (
        "_account",
        "_accounted_number",
        "_accounted_time",
        "_clock",
        "_governor",
        "_guard",
        "_has_more",
        "_left",
        "_mean",
        "_next",
        "_observer",
        "_offset",
        "_on_over",
        "_rows",
        "_run",
        "_scheduler",
        "_seconds",
        "_sender",
        "_session",
        "_state",
        "_tensor",
        "is_interrupted",
        "is_open",
        "loss_limit",
        "since",
    )

    def __init__(
        self,
        session: Session,
        observer: "Observer",
        clock: PhaseClock,
        guard: Guard,
        governor: Governor,
        scheduler: Any,
        account: Account,
        on_over: Callable[[], None],
    ) -> None:
        """`on_over` is called when the next step is not thin; it ends the run."""
        self._session = session
        self._clock = clock
        self._guard = guard
        self._governor = governor
        self._scheduler = scheduler
        self._account = account
        self._on_over = on_over
        self.is_open = False
        """Whether the step that is under way is one of a run."""
        self.is_interrupted = False
        """Whether the next step is to be reported in full; set by the sender's thread too."""
        self.loss_limit = sys.float_info.max
        self.since = 0.0
        """When the step began."""
        self._mean = self._seconds = 0.0
        self._sender: Sender | None = None
        self.change_observer(observer)

    def change_observer(self, observer: "Observer") -> None:
        """Another observer takes over, between two runs."""
        self._observer = observer
        self._state = observer.optimizer_state
        parameters = observer.table.parameters
        self._tensor = type(parameters[0].data) if parameters else None

    def begin(self, seq: int, boundary: int) -> None:
        """The step that begins is thin; `seq` is the last report's, `boundary` the number of the last boundary."""
        session, governor, count = self._session, self._governor, self._session.count
        self._sender = session.sender
        if self._sender is None:
            return
        self.is_interrupted = False
        self.is_open = True
        self.since = self._accounted_time = self._clock.since
        self._next = self._accounted_number = count.step + 1
        self._offset = boundary - self._next  # of the boundaries' numbers from those of the steps
        self._has_more = self._scheduler is not None or self._observer.batches.index >= 0
        self._left = min(STEPS, governor.num_thin_from(boundary))
        self._make_run(seq + 1)

    def _make_run(self, seq: int) -> None:
        governor, count = self._governor, self._session.count
        self._run = ThinRun(
            attempt=self._session.attempt,
            first_seq=seq,
            first_step=self._next,
            model_offset=count.model_step - count.step,
            time=time.time() - (perf_counter() - self.since),
            cadences=(governor.sample_every, governor.norm_every, governor.phase_every),
            agent_seconds=self._mean or governor.thin_seconds,
        )
        self._rows = self._run.rows

    def end_step(self, number: int, loss: Any, num_samples: Any, num_tokens: Any) -> bool:
        """Adds the row of the step that ends now; False if more than that is to be reported of it. Never raises."""
        now = perf_counter()
        if self.is_interrupted or number != self._next:
            return False
        try:
            if loss is not None:
                if type(loss) is self._tensor and loss.is_cpu and not loss.dim():
                    loss = loss.item()  # it is on the host: nothing is waited for
                if type(loss) is not float:
                    loss = self._observer.loss_on_host(loss)
                    if loss is None:
                        return False
                limit = self.loss_limit
                if not -limit <= loss <= limit:
                    return False  # trouble is reported at once, and may have more to be reported
            rows = self._rows
            if not rows and self._sender is not None:
                self._sender.put_run(self._run, self)
            if self._has_more or num_samples is not None or num_tokens is not None:
                rows.append(self._long_row(now, loss, num_samples, num_tokens))
            else:
                rows.append((now - self.since, loss, self._state.read))
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            self._guard.failed("step", error)
            return False
        self.since = now
        self._next = number + 1
        self._left -= 1
        if self._left <= 0:
            self._go_on()
        self._seconds += perf_counter() - now
        return True

    def _long_row(self, now: float, loss: float | None, num_samples: Any, num_tokens: Any) -> Row:
        return (
            now - self.since,
            loss,
            self._state.read,
            scheduler_steps(self._scheduler),
            None if num_samples is None else kept_count(num_samples),
            None if num_tokens is None else kept_count(num_tokens),
            self._observer.batches.place(),
        )

    def _go_on(self) -> None:
        """After some thin steps: their costs, and whether the next step is thin as well."""
        try:
            self._settle()
            self._left = min(STEPS, self._governor.num_thin_from(self._offset + self._next))
            if self._left <= 0:
                self._on_over()
            elif len(self._rows) > MAX_ROWS - STEPS:
                run = self._run
                run.is_over = True
                self._make_run(run.first_seq + len(run.rows))
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            self._guard.failed("step", error)

    def _settle(self) -> None:
        num, seconds = self._next - self._accounted_number, self._seconds
        total = self.since - self._accounted_time
        self._accounted_number, self._accounted_time, self._seconds = self._next, self.since, 0.0
        if num:
            self._guard.seconds += seconds
            seconds = self._guard.take_seconds()
            self._run.agent_seconds = self._mean = seconds / num
            self._account(seconds, total, num)

    def end(self) -> tuple[int, int]:
        """The step that is under way belongs to no run any more; returns the last one's seq and boundary."""
        self._settle()
        self.is_open = False
        self._clock.since = self.since
        self._run.is_over = True
        return self._run.first_seq + len(self._rows) - 1, self._offset + self._next
