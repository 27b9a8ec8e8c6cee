"""One Collector that reads the state at scrape time.

Design
------
Nothing is counted twice: the numbers are in the state, and a scrape turns copies of them into samples. Between
scrapes the collector remembers only which jobs have series (256), which layers and ranks of each job are among the
worst, which names each job has used, and which decisions were counted, because a job drops old ones. So the number of
series is limited at every moment and over a day, whatever agents send. A running job, or one with an incident, does not
wait for the slot of an ended one: 256 killed jobs must not prevent a new job from being watched.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.state import State
from caboose_daemon.out.links import Links
from caboose_daemon.out.metrics.daemon import add_daemon
from caboose_daemon.out.metrics.incidents import SEVERITIES, add_incidents, exported_severities
from caboose_daemon.out.metrics.jobs import add_job
from caboose_daemon.out.metrics.layers import LayerSeries
from caboose_daemon.out.metrics.names import Names
from caboose_daemon.out.metrics.ranks import RankSeries
from caboose_daemon.out.metrics.rollbacks import RollbackSeries
from caboose_daemon.out.metrics.samples import MetricSamples
from caboose_daemon.out.metrics.slots import Slots
from caboose_daemon.rollback_state.settings import RollbackConfig

MAX_JOBS = 256
LIVE, LONG_GONE = 4.0, 0.25
"""Weight of a running job, and of one silent for hours; a job that has just ended has weight 1."""
SEVERER = 32.0
"""Factor on the weight for each level of severity of the worst open incident."""


class StateCollector(Collector):
    """The state as metric families."""

    def __init__(
        self,
        state: State,
        clock: Callable[[], float],
        incident_seconds: float = 120.0,
        rollback: RollbackConfig | None = None,
    ) -> None:
        self._state = state
        self._clock = clock
        self._incident_seconds = incident_seconds
        self._rollback = rollback or RollbackConfig()
        self._slots = Slots(MAX_JOBS, is_patient=False)
        self._series: dict[str, _Series] = {}
        self._scraping = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """Empty, because the families depend on the jobs."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families. One scrape at a time: what is kept between scrapes belongs to it."""
        samples = MetricSamples()
        with self._scraping:
            with self._state.lock:
                add_daemon(self._state, samples, self._clock())
            self._add_jobs(samples, self._clock())
        yield from samples

    def _add_jobs(self, samples: MetricSamples, now: float) -> None:
        jobs = {job.name: job for job in self._state.copies()}
        lags = (job.lag_seconds for job in jobs.values() if job.state == "running")
        samples.add("caboose_loop_lag_seconds", max(lags, default=0.0))
        names = list(jobs)
        wanted = np.array([self._interest(jobs[name], now) for name in names])
        chosen = [names[row] for row in self._slots.choose(names, wanted, now)] if names else []
        samples.add("caboose_jobs_hidden", len(jobs) - len(chosen))
        links = Links.of(self._state)
        self._series = {name: self._series.get(name) or self._made() for name in chosen}
        for name in chosen:
            job, series = jobs[name], self._series[name]
            series.names.begin(now)
            of_job = samples.of(name, series.names)
            add_job(job, of_job, now)
            add_incidents(job, of_job, now, self._incident_seconds, links)
            series.rollbacks.add(job, of_job, now)
            series.layers.add(job, of_job, now)
            series.ranks.add(job, of_job, now)
            of_job.add("caboose_names_hidden", series.names.num_left_out)

    def _interest(self, job: Job, now: float) -> float:
        """Weight of a job for a slot: by severity, then whether it runs, then time since its last message.

        Each level is more than twice the one below, so that the more important job replaces the other.
        """
        severities = (SEVERITIES[severity] for severity in exported_severities(job, now, self._incident_seconds))
        silent_hours = max(0.0, now - job.last_seen) / 3600
        standing = LIVE if job.num_live(now) else max(LONG_GONE, 1 / (1 + silent_hours))
        return float(SEVERER ** max(severities, default=0.0) * standing)

    def _made(self) -> "_Series":
        return _Series(Names(), LayerSeries(), RankSeries(), RollbackSeries(self._rollback))


@dataclass(frozen=True)
class _Series:
    """The state of one job that is kept between scrapes."""

    names: Names
    layers: LayerSeries
    ranks: RankSeries
    rollbacks: RollbackSeries
