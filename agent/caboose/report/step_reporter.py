"""Turns each finished step into a report, decides which steps are sampled, and answers the heartbeat.

Design
------
`begin_step` and `report` run on the training thread, behind the monitor's guard. `heartbeat` and `_after_bad_number`
run on the sender's thread; they only read plain attributes and set two flags. Thin steps follow one another in runs,
and pass their boundaries in `thin_steps`; a step that needs more ends the run here.
"""

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from caboose.governor import Governor
from caboose.guard import Guard, left_out
from caboose.observe.phases import PhaseClock, Times
from caboose.report.past_steps import PastRecord, read_back
from caboose.report.record import PlainRecord, StepRecord
from caboose.report.session import Session
from caboose.report.thin_steps import ThinSteps
from caboose.tensors.scalars import as_number, kept_count, scheduler_steps
from caboose_wire import Heartbeat, StepReport
from caboose_wire.fields import MAX_SCALARS

if TYPE_CHECKING:
    import torch

    from caboose.observe.batches import BatchCounter
    from caboose.observe.observer import ObservedStep, Observer, PlainStep
    from caboose.report.past_steps import PastStep

Loss: TypeAlias = "torch.Tensor | float | None"
OnObserved = Callable[[int, "ObservedStep", Any, "BatchCounter"], None]
"""Called with the step, what was observed of it, its loss and the batch counter."""


class UpdateSkipper(Protocol):
    """Counts the updates it has skipped; see `rollback.skip_step`."""

    num_skipped: int

    def end_step(self) -> None:
        """A step boundary."""


class StepReporter:
    """Makes the step reports of one rank."""

    def __init__(
        self,
        session: Session,
        observer: "Observer",
        clock: PhaseClock,
        guard: Guard,
        governor: Governor,
        *,
        scheduler: Any = None,
        skipper: UpdateSkipper | None = None,
        on_observed: OnObserved | None = None,
        other_guards: Sequence[Guard] = (),
    ) -> None:
        """`other_guards` time what is reported as the agent's time, but does not count against its budget."""
        self._session = session
        self._observer = observer
        self._clock = clock
        self._guard = guard
        self._governor = governor
        self._scheduler = scheduler
        self._skipper = skipper
        self._on_observed = on_observed
        self._other_guards = other_guards
        self._seq = 0
        self._num_boundaries = 0
        self._sender_seconds = 0.0
        self._boundary = perf_counter()
        self._had_bad_number = False
        self._takes_norms = True
        self.thin = ThinSteps(
            session, observer, clock, guard, governor, scheduler, self._account_thin, self._run_is_over
        )
        """What ends the steps of a run of thin ones."""
        self._on_bad_number = self._after_bad_number  # bound once
        self._can_be_plain = skipper is None and on_observed is None and not other_guards
        observer.begin(is_sampled=True)

    def change_observer(self, observer: "Observer") -> None:
        """Another observer takes over, in the middle of a step."""
        self._end_run()
        observer.begin(is_sampled=self._observer.is_sampled)
        self._observer = observer
        self.thin.change_observer(observer)

    def retire(self) -> None:
        """The guard has tripped: no step is observed any more, nor ends as one of a run."""
        self.thin.is_interrupted = True
        self._observer.retire()

    def begin_step(self) -> None:
        """The next step: sampled if the governor's cadence asks for it, or after a number that was not finite."""
        self._num_boundaries += 1
        had_bad_number, self._had_bad_number = self._had_bad_number, False
        governor, number = self._governor, self._num_boundaries
        takes_norms = self._takes_norms = had_bad_number or governor.takes_norms(number)
        self._observer.begin(
            is_sampled=had_bad_number or (takes_norms and governor.is_sampled(number)),
            takes_norms=takes_norms,
            takes_phases=takes_norms or governor.takes_phases(number),
        )
        if self._observer.is_thin and self._can_be_plain and not self._observer.has_more_than_numbers:
            self._begin_run()

    def _begin_run(self) -> None:
        self.thin.begin(self._seq, self._num_boundaries)
        if self._had_bad_number:
            self.thin.is_interrupted = True

    def _end_run(self) -> None:
        """The step that is under way belongs to the run of thin steps no more."""
        if self.thin.is_open:
            seq, boundary = self.thin.end()
            self._observer.end_thin(seq - self._seq)
            self._seq, self._num_boundaries = seq, boundary

    def _run_is_over(self) -> None:
        self._end_run()
        self._num_boundaries -= 1  # begin_step counts the one that the run's last step has passed already
        self.begin_step()

    def _account_thin(self, agent_seconds: float, step_seconds: float, num_steps: int) -> None:
        self._account(
            agent_seconds, step_seconds, was_sampled=False, had_norms=False, had_phases=False, num_steps=num_steps
        )

    def report(
        self,
        loss: "Loss | Mapping[str, Loss]",
        metrics: Mapping[str, float] | None,
        num_samples: int | None,
        num_tokens: int | None,
    ) -> None:
        """Queues the report of the step that ends now."""
        self._end_run()
        session, observer, count = self._session, self._observer, self._session.count
        self._seq += 1
        self._boundary = perf_counter()
        times = self._clock.take_times()
        agent_seconds = self._guard.take_seconds()
        had_phases = not observer.is_thin
        plain = observer.take_plain(loss) if self._can_be_plain and not metrics else None
        if plain is not None:
            self._put_plain(plain, times, agent_seconds, num_samples, num_tokens)
            self._account(agent_seconds, times.total, was_sampled=False, had_norms=False, had_phases=had_phases)
            return
        other_seconds = sum([guard.take_seconds() for guard in self._other_guards])
        seen = observer.take(loss)
        if self._on_observed is not None:
            first = next(iter(loss.values()), None) if isinstance(loss, Mapping) else loss
            self._on_observed(count.step, seen, first, observer.batches)
        record = StepRecord(
            fields={
                "attempt": session.attempt,
                "seq": self._seq,
                "step": count.step,
                "model_step": count.model_step,
                "time": time.time(),
                "num_scheduler_steps": scheduler_steps(self._scheduler),
                "metrics": _numbers(metrics) if metrics else {},
                "agent_seconds": agent_seconds + other_seconds,
                "sample_every": self._governor.sample_every,
                "norm_every": self._governor.norm_every,
                "phase_every": self._governor.phase_every,
                "num_skipped": self._skipper.num_skipped if self._skipper is not None else 0,
                **(self._sampled_fields() if seen.is_sampled else {}),
            },
            num_samples=kept_count(num_samples),
            num_tokens=kept_count(num_tokens),
            times=times,
            num_layers=len(observer.table),
            num_modules=len(observer.modules) if seen.is_sampled else 0,
            part=observer.part,
            batch=observer.batches.place(),
            held=observer.step_input(),
            device_phases=self._clock.device_phases.take() if self._clock.device_phases is not None else None,
            seen=seen,
            on_bad_number=self._on_bad_number,
        )
        if self._skipper is not None:
            self._skipper.end_step()
        if observer.take_news():
            session.update_hello(
                facts={**(session.hello.facts if session.hello is not None else {}), **observer.facts},
                layers=observer.table.layers,
                groups=observer.groups,
                modules=observer.modules,
                visible=observer.visible,
                blind=observer.blind,
                parts=observer.parts,
            )
        session.put(record)
        self._account(
            agent_seconds,
            times.total,
            was_sampled=seen.is_sampled,
            had_norms=self._takes_norms,
            had_phases=had_phases,
        )

    def report_past(self, steps: "Sequence[PastStep]") -> None:
        """Queues the reports of steps that were taken before this monitor was there, as the steps that come next."""
        self._end_run()
        session, count = self._session, self._session.count
        for past, (losses, place) in zip(steps, read_back(steps), strict=True):
            self._seq += 1
            step = count.advance(None)
            session.put(PastRecord(past, session.attempt, self._seq, step, count.model_step, losses, place))

    def _put_plain(
        self,
        plain: "PlainStep",
        times: Times,
        agent_seconds: float,
        num_samples: int | None,
        num_tokens: int | None,
    ) -> None:
        """Queues the report of a step that has nothing but a loss: on a short step, every microsecond counts."""
        session, count, batches = self._session, self._session.count, self._observer.batches
        governor = self._governor
        session.put(
            PlainRecord(
                session.attempt,
                self._seq,
                count.step,
                count.model_step,
                time.time(),
                *plain,
                times,
                agent_seconds,
                (governor.sample_every, governor.norm_every, governor.phase_every),
                scheduler_steps(self._scheduler),
                batches.place(),
                self._observer.step_input(),
                None if num_samples is None else kept_count(num_samples),
                None if num_tokens is None else kept_count(num_tokens),
                self._on_bad_number,
            )
        )
        if session.sender is not None:
            session.sender.note_loss(plain[0])

    def _account(
        self,
        agent_seconds: float,
        step_seconds: float,
        *,
        was_sampled: bool,
        had_norms: bool,
        had_phases: bool,
        num_steps: int = 1,
    ) -> None:
        sender = self._session.sender
        total = sender.cpu_seconds if sender is not None else 0.0
        sender_seconds, self._sender_seconds = total - self._sender_seconds, total
        self._governor.account(
            agent_seconds,
            step_seconds,
            was_sampled=was_sampled,
            had_norms=had_norms,
            had_phases=had_phases,
            background_seconds=sender_seconds,
            num_steps=num_steps,
        )

    def _sampled_fields(self) -> dict[str, Any]:
        """Fields that only the report of a sampled step has."""
        return {
            "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "device_bytes": self._observer.device_bytes(),
        }

    def _after_bad_number(self, report: StepReport, held: Any) -> StepReport:
        """A loss or norm is not finite: adds the batch's statistics, if it still exists, and samples the next step."""
        from caboose.observe.batches import after_an_incident

        self._had_bad_number = True
        self.thin.is_interrupted = True
        return msgspec.structs.replace(report, batch=after_an_incident(report.batch, held))

    def heartbeat(self) -> Heartbeat:
        session = self._session
        return Heartbeat(
            step=session.count.step,
            since_step_seconds=max(0.0, perf_counter() - max(self._boundary, self.thin.since)),
            num_dropped=session.sender.num_dropped if session.sender is not None else 0,
            num_failures=self._guard.num_failures,
            utilization=self._observer.utilization.read(),
            state="disabled" if self._guard.is_tripped else "training",
            phase="" if self._observer.is_thin else self._clock.current,
        )


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those of a step's metrics that are numbers."""
    if len(metrics) > MAX_SCALARS:
        left_out(f"a metric beyond the first {MAX_SCALARS} of a step")
    found = {str(name)[:256]: as_number(value, "a metric") for name, value in islice(metrics.items(), MAX_SCALARS)}
    return {name: value for name, value in found.items() if value is not None}
