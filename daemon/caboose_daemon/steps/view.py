"""The read-only view of a job that rules get."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec

from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.regimes import Regime
from caboose_daemon.steps.settings import number
from caboose_wire import Event, Group, Layer, Module
from caboose_wire.fields import Scalar

MOVING_OBJECTIVE = "moving_objective"
"""Visible in a job whose loss is not meant to fall."""

RankState = Literal["expected", "live", "left", "terminated", "failed"]
"""expected: no message yet. left: sent its Bye. terminated: left because of a signal. failed: because of an error."""
GONE: frozenset[RankState] = frozenset({"left", "terminated", "failed"})
"""The states of a rank that sent its Bye."""


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """One rank by its last messages; thousands are made at every tick."""

    rank: int
    state: RankState
    host: str = ""
    pid: int = 0
    """0 where it is not known."""
    step: int = 0
    last_seen: float = 0.0
    """Time of its last message of any kind; 0 if there was none."""
    since_step_seconds: float = 0.0
    num_dropped: int = 0
    error: str = ""
    """What it failed with, or the signal that terminated it."""
    agent_state: str = "training"
    """By its heartbeats: training, or disabled after repeated failures of the agent itself."""
    phase: str = ""
    """The phase of its training thread at the last heartbeat, if that is newer than its last step; else empty."""


@dataclass(frozen=True)
class AlignmentFacts:
    """What went wrong in aligning the ranks' reports, counted since the attempt began."""

    num_late: int = 0
    """Reports that arrived after their step was closed."""
    num_duplicate: int = 0
    num_incomplete: int = 0
    """Steps that were closed without some rank."""
    num_missed: int = 0
    """Reports that never arrived: gaps in the ranks' sequence numbers."""
    num_dropped: int = 0
    """Reports that the agents themselves dropped, because the daemon did not take them in time."""


class JobView(msgspec.Struct, frozen=True, kw_only=True, dict=True, eq=False):
    """A job at one moment: its ranks, its model, and the step that was just aligned."""

    job: str
    attempt: int
    world: int
    now: float
    attempt_began: float
    look_at_ranks: Callable[[], Mapping[int, RankView]]
    layers: Sequence[Layer]
    groups: Sequence[Group]
    visible: frozenset[str]
    step: AlignedStep | None
    """The step just aligned; None on a tick."""
    events: Sequence[Event] = ()
    """Declared between the step before and this one (on a tick: since the last step).

    A report may come later than what was declared after it.
    """
    modules: Sequence[Module] = ()
    facts: Mapping[str, Scalar] = {}
    """What the agent found out about model, optimizer and data."""
    config: Mapping[str, Scalar] = {}
    """The user's settings, given at attach."""
    blind: Mapping[str, str] = {}
    """What the agent cannot see, with reasons."""
    regime: Regime = Regime()
    look_at_alignment: Callable[[], AlignmentFacts] = AlignmentFacts
    start_step: int = 0
    """The step that this attempt began after."""
    previous_scheduler_steps: int | None = None
    previous_lr: float | None = None
    """Where this attempt resumed an earlier one: the largest group's learning rate at that step."""
    look_at_abstaining: Callable[[], Mapping[str, Sequence[str]]] = dict
    """Rules that cannot judge this job, with what is not visible to them."""

    @cached_property
    def ranks(self) -> Mapping[int, RankView]:
        """Every rank that ever sent a message in this attempt; made when first asked for."""
        return self.look_at_ranks()

    @cached_property
    def alignment(self) -> AlignmentFacts:
        """Counted when first asked for: a job may have thousands of ranks."""
        return self.look_at_alignment()

    def setting(self, name: str) -> float | None:
        """A number the user gave, or the agent found, under this name; None where there is none."""
        return number(name, self.config, self.facts)
