"""Everything the daemon has in memory, and the lock that guards it."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from caboose_daemon.jobs.engine import RuleStats
from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.job_guard import JobGuard
from caboose_daemon.rules import RULES, AnyRule
from caboose_daemon.rules.parts.rule import RuleConfig


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

    The loop's thread writes, HTTP reads; both hold `lock` while they do, for milliseconds.
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
    num_bytes: int = 0
    turn_seconds: float = 0.0
    """How long the last turn of the receiving loop took, without the time it waited."""
    num_peers: int = 0
    journal_failures: int = 0
    journal_error: str = ""
    journal_bytes: int = 0
    journal_lost: int = 0
    """Rows dropped because the journal could not be written for too long."""
    exports: dict[str, ExportCounts] = field(default_factory=dict)
    """By target: grafana, tensorboard, wandb."""
    last_scrape: float | None = None
    """When /metrics was last requested."""
    scraper: str = ""
    """The user agent of that request."""
    scrape_seconds: float | None = None
    """How long the last response to /metrics took, until it was sent; None before the first."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    guard: JobGuard = field(init=False)

    def __post_init__(self) -> None:
        self.guard = JobGuard(self.num_errors)

    @property
    def lag_seconds(self) -> float:
        """The largest lag of any job that is running."""
        return max((job.lag_seconds for job in self.jobs.values() if job.state == "running"), default=0.0)
