"""One Collector that reads the state at scrape time.

Design
------
Nothing is counted twice: the numbers live in the state, and a scrape turns them into samples under its lock. What a
scrape remembers is only who holds a place: which jobs have series at all (256), and in each job which layers and ranks
are among the worst and which names it has used; and which decisions were counted, as a job forgets old ones. So the
number of series is bounded at every moment and over a day, whoever sends what. A job in trouble, or one that runs,
does not wait for the place of one that is over: 256 jobs that were killed must not keep a new one from being watched.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.state import State
from caboose_daemon.out.metrics.daemon import add_daemon
from caboose_daemon.out.metrics.incidents import SEVERITIES, add_incidents, told
from caboose_daemon.out.metrics.jobs import add_job
from caboose_daemon.out.metrics.layers import LayerSeries
from caboose_daemon.out.metrics.names import Names
from caboose_daemon.out.metrics.ranks import RankSeries
from caboose_daemon.out.metrics.rollbacks import RollbackSeries
from caboose_daemon.out.metrics.samples import Samples
from caboose_daemon.out.metrics.slots import Slots
from caboose_daemon.rollback_state.settings import RollbackConfig

MAX_JOBS = 256
LIVE, LONG_GONE = 4.0, 0.25
"""What a job that runs counts for, and one that has not been heard for hours, beside one that has just ended: 1."""
SEVERER = 32.0
"""How much more a job counts for each step of severity of what is open in it."""


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

    def describe(self) -> Iterable[Metric]:
        """Nothing: the families depend on the jobs."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every family, read under the state's lock."""
        samples = Samples()
        with self._state.lock:
            add_daemon(self._state, samples)
            self._add_jobs(samples, self._clock())
        yield from samples

    def _add_jobs(self, samples: Samples, now: float) -> None:
        jobs = self._state.jobs
        names = list(jobs)
        wanted = np.array([self._interest(jobs[name], now) for name in names])
        chosen = [names[row] for row in self._slots.choose(names, wanted, now)] if names else []
        samples.add("caboose_jobs_hidden", len(jobs) - len(chosen))
        self._series = {name: self._series.get(name) or self._made() for name in chosen}
        for name in chosen:
            job, series = jobs[name], self._series[name]
            series.names.begin(now)
            of_job = samples.of(name, series.names)
            add_job(job, of_job, now)
            add_incidents(job, of_job, now, self._incident_seconds)
            series.rollbacks.add(job, of_job, now)
            series.layers.add(job, of_job, now)
            series.ranks.add(job, of_job, now)
            of_job.add("caboose_names_hidden", series.names.num_left_out)

    def _interest(self, job: Job, now: float) -> float:
        """How much a job deserves a place: by what is open, then whether it runs, then how long ago it was heard.

        Each step is more than twice the one below, so that the more interesting job takes the other's place.
        """
        severities = (SEVERITIES[severity] for severity in told(job, now, self._incident_seconds))
        silent_hours = max(0.0, now - job.last_seen) / 3600
        standing = LIVE if job.num_live(now) else max(LONG_GONE, 1 / (1 + silent_hours))
        return float(SEVERER ** max(severities, default=0.0) * standing)

    def _made(self) -> "_Series":
        return _Series(Names(), LayerSeries(), RankSeries(), RollbackSeries(self._rollback))


@dataclass(frozen=True)
class _Series:
    """What is remembered of one job from one scrape to the next."""

    names: Names
    layers: LayerSeries
    ranks: RankSeries
    rollbacks: RollbackSeries
