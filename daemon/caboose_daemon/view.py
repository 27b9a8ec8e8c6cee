"""The read-only view of a job that rules, pages and exporters look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from caboose_daemon.aligned import AlignedStep
from caboose_wire import Event, Group, Layer

RankState = Literal["expected", "live", "left", "failed"]
"""expected: not heard of yet. left: said good-bye. failed: left because of an error."""


@dataclass(frozen=True)
class RankView:
    """One rank as the daemon last knew it."""

    rank: int
    state: RankState
    host: str = ""
    step: int = 0
    last_seen: float = 0.0
    """Clock time of its last message of any kind; 0 if there was none."""
    since_step_seconds: float = 0.0
    num_dropped: int = 0
    error: str = ""


@dataclass(frozen=True)
class JobView:
    """A job at one moment: who takes part, what its model is, and the step that was just aligned."""

    job: str
    attempt: int
    world: int
    now: float
    attempt_began: float
    ranks: Mapping[int, RankView]
    """Every rank from which something was ever heard in this attempt."""
    layers: Sequence[Layer]
    groups: Sequence[Group]
    visible: frozenset[str]
    step: AlignedStep | None
    """The step just aligned; None on a tick."""
    events: Sequence[Event] = ()
    """Declared between the step before and this one; a report may come later than what was declared after it."""
