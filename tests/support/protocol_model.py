"""A model of how ranks agree on one command, and a checker that walks through everything that can happen to it.

Design
------
`World` is what all parties know at one moment. A *protocol* lists the worlds that may follow, one event away; the
checker visits every world that can be reached and counts those that are bad:

- *mixed*: some rank acted at the boundary and some rank went past it without acting. The replicas have diverged,
  silently.
- *deadlock*: nothing can happen any more but another fault, and the loops are not at their end.

The model of the run: a rank passes a boundary only when all ranks have begun that step (they meet in the collectives of
the backward pass). Messages may be lost or late: whatever may be delivered may also never be. The daemon may die at any
moment, so may the agent's thread on any rank, and every timeout may fire at any moment. A rank whose agent died when it
was armed ends the run (`is_stopped`): that is a restart, neither mixed nor a deadlock.

Ranks are alike, so worlds that differ only in who is who are one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

BOUNDARY = 2
END = 3

UNAWARE, AWARE, LOOKED, ARMED, READY, TOLD_COMMIT, OUT = range(7)
"""What a rank has to do with the command: has not heard, has heard, has found the boundary ahead (and not armed yet),
has armed, has reported so, was asked to act, takes no part."""


class Rank(NamedTuple):
    """One rank: how many boundaries it has passed, and what it has to do with the command."""

    passed: int = 0
    stage: int = UNAWARE
    is_agent_alive: bool = True
    has_acted: bool = False


class World(NamedTuple):
    """Everything there is to know."""

    ranks: tuple[Rank, ...]
    is_published: bool = False
    decision: str = ""
    is_daemon_alive: bool = True
    is_stopped: bool = False


Protocol = Callable[[World], Iterator[World]]


@dataclass(frozen=True)
class Verdict:
    """What the checker found."""

    num_worlds: int
    num_mixed: int
    num_deadlocks: int
    can_commit: bool
    can_abort: bool


def check(protocol: Protocol, num_ranks: int) -> Verdict:
    """Visits every world that can be reached."""
    first = World((Rank(),) * num_ranks)
    seen, waiting = {first}, [first]
    num_mixed = num_deadlocks = 0
    can_commit = can_abort = False
    while waiting:
        world = waiting.pop()
        acted = [rank.has_acted for rank in world.ranks if rank.passed >= BOUNDARY]
        num_mixed += any(acted) and not all(acted)
        is_over = world.is_stopped or all(rank.passed == END for rank in world.ranks)
        can_commit |= is_over and len(acted) == num_ranks and all(acted)
        can_abort |= is_over and len(acted) == num_ranks and not any(acted)
        if is_over:
            continue
        following = [_canonical(after) for after in protocol(world)]
        num_deadlocks += not following
        for after in [*following, *map(_canonical, _faults(world))]:
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return Verdict(len(seen), num_mixed, num_deadlocks, can_commit, can_abort)


def sealed(world: World) -> Iterator[World]:
    """The protocol that is built: arm, acknowledge in the register, and whoever is first at the boundary seals."""
    yield from _sealed(world, is_arming_atomic=True)


def sealed_but_arming_not_atomic(world: World) -> Iterator[World]:
    """The same, but the loop may pass the boundary between the look at it and the arming."""
    yield from _sealed(world, is_arming_atomic=False)


def naive_broadcast(world: World) -> Iterator[World]:
    """The daemon tells everybody to act at the boundary; who has heard it by then does."""
    for i, rank in enumerate(world.ranks):
        if rank.stage == UNAWARE and world.is_daemon_alive and rank.passed < BOUNDARY:
            yield _with(world, i, stage=AWARE)
        if _may_pass(world, rank):
            yield _with(world, i, passed=rank.passed + 1, has_acted=_is_at_gate(rank, AWARE) or rank.has_acted)


def two_phases_presume_abort(world: World) -> Iterator[World]:
    """Two-phase commit with the daemon as coordinator; a rank that waits too long for its word goes on."""
    yield from _two_phases(world)
    for i, rank in enumerate(world.ranks):
        if _may_pass(world, rank) and _is_at_gate(rank, ARMED, READY):
            yield _with(world, i, passed=BOUNDARY, stage=OUT)


def two_phases_wait(world: World) -> Iterator[World]:
    """Two-phase commit with the daemon as coordinator; a rank that is ready waits for its word, however long."""
    yield from _two_phases(world)


def seal_a_belief(world: World) -> Iterator[World]:
    """The first rank at the boundary writes down whether it has heard the command, and all do what is written."""
    for i, rank in enumerate(world.ranks):
        if rank.stage == UNAWARE and world.is_daemon_alive:
            yield _with(world, i, stage=AWARE)
        if not _may_pass(world, rank):
            continue
        if rank.passed != BOUNDARY - 1:
            yield _with(world, i, passed=rank.passed + 1)
        elif world.decision:
            yield _with(world, i, passed=BOUNDARY, has_acted=world.decision == "commit")
        else:
            yield world._replace(decision="commit" if rank.stage == AWARE else "abort")


def _sealed(world: World, *, is_arming_atomic: bool) -> Iterator[World]:
    vetoed = world._replace(decision=world.decision or "abort")
    is_complete = all(rank.stage == READY for rank in world.ranks)
    for i, rank in enumerate(world.ranks):
        is_at_gate = _is_at_gate(rank, ARMED, READY)
        if _may_pass(world, rank) and not is_at_gate:
            yield _with(world, i, passed=rank.passed + 1)
        if not rank.is_agent_alive:
            if _may_pass(world, rank) and is_at_gate:
                yield world._replace(is_stopped=True)  # in doubt
            continue
        if rank.stage == UNAWARE and (world.is_daemon_alive or world.is_published):
            yield _with(world, i, stage=AWARE)
        if rank.stage == AWARE:
            if not world.is_published:
                yield world._replace(is_published=True)
            elif rank.passed < BOUNDARY:
                yield _with(world, i, stage=ARMED if is_arming_atomic else LOOKED)
            if world.is_published:  # late, or some other objection
                yield _with(vetoed, i, stage=OUT)
        if rank.stage == LOOKED:
            yield _with(world, i, stage=ARMED)
        if rank.stage == ARMED:
            yield _with(world, i, stage=READY)
        if rank.stage in (ARMED, READY) and rank.passed < BOUNDARY:
            if world.decision == "abort":
                yield _with(world, i, stage=OUT)
            elif not world.decision:
                yield vetoed  # it leaves
        if _may_pass(world, rank) and is_at_gate:
            if not world.decision:
                yield vetoed  # it has waited long enough
                if is_complete:
                    yield world._replace(decision="commit")
            elif world.decision == "commit":
                yield _with(world, i, passed=BOUNDARY, has_acted=True)
            else:
                yield _with(world, i, passed=BOUNDARY, stage=OUT)


def _two_phases(world: World) -> Iterator[World]:
    is_complete = all(rank.stage == READY for rank in world.ranks)
    if world.is_daemon_alive and not world.decision:
        yield world._replace(decision="abort")
        if is_complete:
            yield world._replace(decision="commit")
    for i, rank in enumerate(world.ranks):
        if world.is_daemon_alive:
            if rank.stage == UNAWARE:
                yield _with(world, i, stage=ARMED if rank.passed < BOUNDARY else OUT)
            if rank.stage == ARMED:
                yield _with(world, i, stage=READY)
            if rank.stage in (ARMED, READY) and world.decision:
                yield _with(world, i, stage=TOLD_COMMIT if world.decision == "commit" else OUT)
        if _may_pass(world, rank) and not _is_at_gate(rank, ARMED, READY):
            acts = _is_at_gate(rank, TOLD_COMMIT)
            yield _with(world, i, passed=rank.passed + 1, has_acted=acts or rank.has_acted)


def _faults(world: World) -> Iterator[World]:
    if world.is_daemon_alive:
        yield world._replace(is_daemon_alive=False)
    for i, rank in enumerate(world.ranks):
        if rank.is_agent_alive:
            yield _with(world, i, is_agent_alive=False)


def _may_pass(world: World, rank: Rank) -> bool:
    return rank.passed < END and all(other.passed >= rank.passed for other in world.ranks)


def _is_at_gate(rank: Rank, *stages: int) -> bool:
    return rank.passed == BOUNDARY - 1 and rank.stage in stages


def _with(world: World, i: int, **changes: object) -> World:
    ranks = list(world.ranks)
    ranks[i] = ranks[i]._replace(**changes)
    return world._replace(ranks=tuple(ranks))


def _canonical(world: World) -> World:
    return world._replace(ranks=tuple(sorted(world.ranks)))
