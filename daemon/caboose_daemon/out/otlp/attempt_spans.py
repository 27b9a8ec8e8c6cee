"""Attempts as spans: one when an attempt ends, because a new one begins or its run is over.

Design
------
A span needs an end, so it is made when the end is known. Only attempts that this process saw running are reported:
otherwise every restart of the daemon would report the ends of all jobs in its journal again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from caboose_daemon.jobs.job import Job
from caboose_daemon.out.metrics.metric import JOB
from caboose_daemon.out.metrics.samples import label
from caboose_daemon.out.otlp import ids
from caboose_daemon.out.otlp.metric_data import nano

NAME = "caboose.attempt"
MAX_RUNNING = 4096
FAILED_STATES = ("crashed", "lost")


@dataclass(frozen=True)
class RunningAttempt:
    """An attempt that runs, as last seen."""

    job: str
    created: float
    number: int
    began: float
    world: int
    start_step: int
    reason: str
    step: int = 0


@dataclass(frozen=True)
class EndedAttempt:
    """An attempt that is over."""

    attempt: RunningAttempt
    ended: float
    state: str
    """That of the job, or `superseded` where a new attempt began."""
    text: str = ""


def running(job: Job) -> RunningAttempt | None:
    """The attempt of a job; None before its first rank, or if it is over."""
    attempt = job.attempt
    if attempt is None or job.ending is not None:
        return None
    return RunningAttempt(
        job=job.name,
        created=job.created,
        number=job.num_attempts,
        began=attempt.began,
        world=attempt.world,
        start_step=attempt.start_step,
        reason=attempt.reason or "launch",
        step=job.latest_step,
    )


class Attempts:
    """The attempts that run, by job."""

    def __init__(self) -> None:
        self._running: dict[str, RunningAttempt] = {}

    def began(self, attempt: RunningAttempt) -> EndedAttempt | None:
        """A new attempt: the one that it ends, if that was seen."""
        before = self._running.pop(attempt.job, None)
        while len(self._running) >= MAX_RUNNING:
            del self._running[next(iter(self._running))]
        self._running[attempt.job] = attempt
        if before is None or before.number == attempt.number:
            return None
        return EndedAttempt(before, attempt.began, "superseded", attempt.reason)

    def look(self, jobs: Iterable[Job]) -> list[EndedAttempt]:
        """The attempts that ended since the last look, and the steps of the others."""
        ended = []
        for job in jobs:
            known = self._running.get(job.name)
            now = running(job)
            if now is not None:
                over = self.began(now)
                ended += [] if over is None else [over]
            elif known is not None and job.ending is not None:
                del self._running[job.name]
                last = replace(known, step=job.ending.step)
                ended.append(EndedAttempt(last, job.last_seen, job.ending.state, job.ending.text))
        return ended


def span(over: EndedAttempt, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    attempt = over.attempt
    context = SpanContext(
        ids.trace_id(attempt.job, attempt.created),
        ids.span_id(attempt.job, attempt.created, attempt.number),
        is_remote=False,
        trace_flags=TraceFlags(1),
    )
    has_failed = over.state in FAILED_STATES
    return ReadableSpan(
        NAME,
        context=context,
        resource=resource,
        instrumentation_scope=scope,
        attributes={
            JOB: label(attempt.job),
            "attempt": attempt.number,
            "world": attempt.world,
            "reason": label(attempt.reason),
            "start_step": attempt.start_step,
            "last_step": attempt.step,
            "state": over.state,
        },
        status=Status(StatusCode.ERROR, label(over.text, 512)) if has_failed else Status(StatusCode.OK),
        start_time=nano(attempt.began),
        end_time=nano(max(attempt.began, over.ended)),
    )
