"""Everything the daemon has in memory, and the lock that guards it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from caboose_daemon.jobs.engine import RuleStats
from caboose_daemon.jobs.fair_lock import FairLock
from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.job_guard import JobGuard
from caboose_daemon.jobs.relay_states import RelayStates
from caboose_daemon.rules import RULES, AnyRule
from caboose_daemon.rules.parts.rule import RuleConfig

COPIED_AT_ONCE = 64
"""Jobs that are copied in one hold of the lock: 2 ms. Fewer would be handed over to the loop and back more often."""
SHOWN_STEPS = 64
"""Steps of each job that lists and metrics read."""


@dataclass
class ExportCounts:
    """Counts of the items for one target."""

    num_sent: int = 0
    num_dropped: int = 0
    """Dropped because the target was too slow."""
    num_withdrawn: int = 0
    """Parts of waiting items that were removed because they are too large to keep for long."""
    num_failed: int = 0
    """The target raised."""


@dataclass
class State:
    """The jobs and the daemon's own counters.

    The loop's thread writes. Others read copies (`copy_of`, `copies`), which takes the lock for microseconds. The loop
    releases the lock only when the journal has what changed, so that nobody reads what a kill would lose.
    """

    rule_configs: Mapping[str, RuleConfig]
    started: float
    rules: Sequence[type[AnyRule]] = RULES
    """The rules that judge every job; `rule_configs` has the thresholds of each."""
    jobs: dict[str, Job] = field(default_factory=dict)
    rule_stats: dict[str, RuleStats] = field(default_factory=dict)
    num_frames: Counter[str] = field(default_factory=Counter)
    """Messages accepted, by type."""
    num_refused: Counter[str] = field(default_factory=Counter)
    """Messages and peers refused, by reason."""
    num_errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Exceptions caught while messages and jobs were processed, by stage and exception class."""
    url: str = ""
    """Where the live page is, for people on other machines too; with a slash at its end."""
    grafana_url: str = ""
    """The configured Grafana; empty if there is none."""
    num_bytes: int = 0
    turn_seconds: float = 0.0
    """How long the last turn of the receiving loop took, without the time it waited."""
    behind_seconds: float = 0.0
    """For how long messages have been waiting to be read; 0 while the daemon keeps up."""
    num_peers: int = 0
    relays: RelayStates = field(default_factory=RelayStates)
    journal_failures: int = 0
    journal_error: str = ""
    journal_bytes: int = 0
    journal_lost: int = 0
    """Rows dropped because the journal could not be written for too long."""
    journal_refused: int = 0
    """Rows that were not written because they could not be read again."""
    journal_quarantined: int = 0
    """Rows in the journal's table `quarantine`."""
    journal_damage: str = ""
    """What is damaged in the journal that is in use; empty if nothing is known to be."""
    journal_set_aside: str = ""
    """The name under which the last start kept a damaged journal; empty if there was none."""
    http_dropped: Counter[str] = field(default_factory=Counter)
    """HTTP connections that were closed, by reason."""
    exports: dict[str, ExportCounts] = field(default_factory=dict)
    """By target: grafana, tensorboard, wandb, postgres."""
    store_backlog: int = 0
    """Rows that the common database does not have yet."""
    last_scrape: float | None = None
    """When /metrics was last requested."""
    scraper: str = ""
    """The user agent of that request."""
    scrape_seconds: float | None = None
    """How long the last response to /metrics took, until it was sent; None before the first."""
    lock: FairLock = field(default_factory=FairLock)
    guard: JobGuard = field(init=False)

    def __post_init__(self) -> None:
        self.guard = JobGuard(self.num_errors)

    def copy_of(self, name: str) -> Job | None:
        """A job as it is now; None if there is no such job."""
        with self.lock:
            job = self.jobs.get(name)
            return None if job is None else job.copy()

    def copies(self) -> Iterator[Job]:
        """All jobs as they are now, with their last steps only; the lock is taken for a few at a time."""
        with self.lock:
            jobs = list(self.jobs.values())
        for start in range(0, len(jobs), COPIED_AT_ONCE):
            with self.lock:
                some = [job.copy(SHOWN_STEPS) for job in jobs[start : start + COPIED_AT_ONCE]]
            yield from some
