"""Ranks with the real negotiation over a real store, in whatever order things happen: the protocol's invariants hold.

What a rule does is what one thread of one rank does between two points where another may come in. A rank passes a
boundary only when all have begun that step, as in a collective.
"""

import itertools
from collections import defaultdict

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch.distributed import HashStore

from caboose.rollback.budget import Limits
from caboose.rollback.negotiation import Negotiation, Pending
from caboose.rollback.participant import Participant
from caboose_wire import Ack, Command
from support.commands import GROUP, PlainActions, a_command, a_register

GATE_SECONDS = 1.0
LIMITS = Limits(max_rollbacks=2, cool_steps=12, cool_factor=0.5, max_attempts=1000)
RANK = st.integers(0, 2)
NOW = 1_000_000.0


class SimulatedRank:
    """One rank: its loop, its negotiation, and what it has done."""

    def __init__(self, rank: int, world: int, store: HashStore) -> None:
        self.actions = PlainActions()
        self.answers: list[Ack] = []
        self.participant = Participant(group=GROUP, world=world, secret=None, start_step=0, limits=LIMITS)
        self.negotiation = Negotiation(
            self.participant,
            self.actions,
            rank=rank,
            gate_seconds=GATE_SECONDS,
            on_answer=self.answers.append,
            clock=lambda: NOW,
        )
        self.negotiation.register = a_register(store, rank=rank, world=world)
        self.step = 0
        self.gate: Pending | None = None
        self.is_helper_alive = True
        self.armed_at: dict[int, int] = {}
        """By number: how far the loop was when the rank said that it was ready."""

    def note(self) -> None:
        for ack in self.answers:
            if ack.outcome == "accepted":
                self.armed_at.setdefault(ack.command, ack.step)


class Agreement(RuleBasedStateMachine):
    """Two or three ranks, a daemon that says anything, and faults."""

    @initialize(world=st.integers(2, 3))
    def begin(self, world: int) -> None:
        store = HashStore()
        self.ranks = [SimulatedRank(rank, world, store) for rank in range(world)]
        self.issued: list[Command] = []
        self.is_stopped = False

    @rule(
        ahead=st.integers(-1, 3),
        back=st.integers(1, 6),
        kind=st.sampled_from(["rollback", "rollback", "snapshot"]),
        gap=st.sampled_from([0, 0, 0, 1]),
        reached=st.sampled_from([0b111, 0b111, 0b111, 0b110, 0b101, 0b010, 0b000]),
    )
    def the_daemon_makes_a_command(self, ahead: int, back: int, kind: str, gap: int, reached: int) -> None:
        """And those whom the message reaches hear it at once; the others later, or from the register, or never."""
        number = 1 + gap + max((command.number for command in self.issued), default=0)
        boundary = max(0, max(rank.step for rank in self.ranks) + ahead)
        target = max(0, boundary - back)
        self._issue(number=number, kind=kind, boundary=boundary, target=target)
        for i in range(len(self.ranks)):
            if reached >> i & 1:
                self.a_rank_hears_a_command_perhaps_an_old_one_or_again(i, 0)

    @rule(
        flaw=st.sampled_from(
            [{"group": "an-older-group"}, {"world": 7}, {"expires": NOW - 1}, {"number": 1}, {"target": 10**6}]
        )
    )
    def the_daemon_makes_a_bad_command(self, flaw: dict[str, object]) -> None:
        number = 1 + max((command.number for command in self.issued), default=0)
        boundary = max(rank.step for rank in self.ranks) + 3
        self._issue(**{"number": number, "boundary": boundary, "target": 0, **flaw})
        for i in range(len(self.ranks)):
            self.a_rank_hears_a_command_perhaps_an_old_one_or_again(i, 0)

    @precondition(lambda self: self.issued)
    @rule(i=RANK, which=st.integers(0, 3))
    def a_rank_hears_a_command_perhaps_an_old_one_or_again(self, i: int, which: int) -> None:
        rank = self._rank(i)
        if rank.is_helper_alive:
            rank.negotiation.receive(self.issued[-1 - which % len(self.issued)])

    @rule(i=RANK)
    def a_helper_looks(self, i: int) -> None:
        rank = self._rank(i)
        if rank.is_helper_alive:
            rank.negotiation.poll()

    @rule(i=RANK)
    def a_loop_ends_a_step(self, i: int) -> None:
        self._advance(self._rank(i))

    @rule(i=RANK, waited=st.sampled_from([0.0, 0.5, 1.5]))
    def a_helper_serves_the_gate(self, i: int, waited: float) -> None:
        self._serve(self._rank(i), waited)

    @rule(i=RANK, is_missing=st.sampled_from([False, False, True]))
    def a_snapshot_comes_or_goes(self, i: int, is_missing: bool) -> None:
        self._rank(i).actions.refusal = "no such snapshot here" if is_missing else ""

    @rule(num_steps=st.integers(1, 4), order=st.permutations([0, 1, 2]))
    def the_run_goes_on(self, num_steps: int, order: list[int]) -> None:
        for _ in range(2 * num_steps):
            for i in order:
                self._advance(self._rank(i))
                self._serve(self._rank(i), 0.0)

    @rule(i=RANK, is_death=st.booleans(), is_so=st.integers(0, 9))
    def a_rank_leaves_or_its_helper_dies(self, i: int, is_death: bool, is_so: int) -> None:
        rank = self._rank(i)
        if is_so != 9 or not rank.is_helper_alive:  # seldom, since nothing is agreed on afterwards
            return
        if is_death:
            rank.is_helper_alive = False
        else:
            rank.negotiation.leave()

    @invariant()
    def nobody_acts_alone_or_twice_or_elsewhere(self) -> None:
        if not hasattr(self, "ranks"):
            return
        acts: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for i, rank in enumerate(self.ranks):
            rank.note()
            for command in rank.actions.commands:
                assert (command.group, command.world) == (GROUP, len(self.ranks)), "never what is for others"
                assert command.expires > NOW, "never what has expired"
            numbers = [number for number, _ in rank.actions.acted]
            assert numbers == sorted(set(numbers)), "at most once, and in order"
            for number, step in rank.actions.acted:
                acts[number].append((i, step))
        for number, who in acts.items():
            boundary = who[0][1]
            assert {step for _, step in who} == {boundary}, "all at the same boundary"
            for rank in self.ranks:
                assert rank.armed_at[number] < boundary, "all had armed before they came to it"
                has_acted = any(done == number for done, _ in rank.actions.acted)
                assert has_acted or rank.step < boundary, "nobody is past it without acting"

    @invariant()
    def no_rank_spends_more_than_its_budget(self) -> None:
        for rank in getattr(self, "ranks", []):
            rollbacks = [command for command in rank.actions.commands if command.kind == "rollback"]
            assert len(rollbacks) <= LIMITS.max_rollbacks
            for earlier, later in itertools.pairwise(rollbacks):
                assert later.boundary >= earlier.boundary + LIMITS.cool_steps

    @invariant()
    def a_rank_that_never_armed_never_waits(self) -> None:
        for rank in getattr(self, "ranks", []):
            rank.note()
            if rank.gate is not None:
                assert rank.gate.command.number in rank.armed_at

    @invariant()
    def nothing_is_kept_for_a_command_that_is_over(self) -> None:
        for rank in getattr(self, "ranks", []):
            pending = rank.negotiation.pending
            assert rank.actions.held <= ({pending.command.number} if pending else set())

    def teardown(self) -> None:
        """Whatever has happened: every loop comes to its end, unless a helper died with its rank armed."""
        if not hasattr(self, "ranks"):
            return
        end = max(rank.step for rank in self.ranks) + 8
        for _ in range(40 * len(self.ranks)):
            for rank in self.ranks:
                self._advance(rank, end)
                self._serve(rank, 1.5)
        self.nobody_acts_alone_or_twice_or_elsewhere()
        if not self.is_stopped:
            assert all(rank.step == end for rank in self.ranks), "nobody waits for ever"
            assert len({tuple(rank.actions.acted) for rank in self.ranks}) == 1, "all did the same"

    def _issue(self, **fields: object) -> None:
        self.issued.append(a_command(**{"world": len(self.ranks), "expires": NOW + 60, **fields}))

    def _rank(self, i: int) -> SimulatedRank:
        return self.ranks[i % len(self.ranks)]

    def _advance(self, rank: SimulatedRank, end: int = 10**9) -> None:
        if rank.gate is not None or rank.step >= end or any(other.step < rank.step for other in self.ranks):
            return
        if rank.participant.reach(rank.step + 1) is None:
            rank.step += 1
        else:
            rank.gate = rank.negotiation.arrive(rank.step + 1)

    def _serve(self, rank: SimulatedRank, waited: float) -> None:
        gate = rank.gate
        if gate is None:
            return
        if gate.decision is None:
            if not rank.is_helper_alive:
                self.is_stopped = True  # in doubt: the run ends
                return
            if not rank.negotiation.decide(gate, waited):
                assert waited <= GATE_SECONDS, "no wait is longer than the gate allows"
                return
        assert gate.decision is not None
        if gate.decision.is_commit:
            rank.actions.act(gate.command, gate.step)
            rank.negotiation.carried_out()
        rank.gate = None
        rank.step += 1


Agreement.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAgreementOfRanks = pytest.mark.slow(Agreement.TestCase)
