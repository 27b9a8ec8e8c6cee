"""Decides when a run is rolled back, and has it done where both sides allow it.

Design
------
Called once in every turn of the loop, after the steps were judged, with the state's lock held. It looks at a job when
steps have been judged since, or a second has passed. Each open incident about numbers that broke is triaged; the first
one for which waiting costs more than going back gets a decision. While a command is on its way nothing else is decided.

A decision is made once for each trouble, not at every step: what was decided before is read from the decisions
themselves, which the journal has, so a restarted daemon neither forgets nor repeats. With the mode `advise` the same is
worked out and written down, and nothing is sent.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from caboose_daemon.jobs.job import Attempt, Job
from caboose_daemon.jobs.pipeline import Pipeline, Sink
from caboose_daemon.jobs.state import State
from caboose_daemon.rollback import bad_spans, hunting
from caboose_daemon.rollback.aftermath import Aftermath
from caboose_daemon.rollback.commander import NO_TRAIL, Commander
from caboose_daemon.rollback.modes import effective, owners_mode
from caboose_daemon.rollback.plan import make_plan
from caboose_daemon.rollback.target import ahead, choose, notice, on_all, pace, stride
from caboose_daemon.rollback_state.cost import weigh
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.ladder import Rung, climb, spent
from caboose_daemon.rollback_state.ledger import LedgerEntry
from caboose_daemon.rollback_state.settings import RollbackConfig
from caboose_daemon.rollback_state.triage import Losses, Triage, judge
from caboose_wire import Ack, Held, Hello, Holdings, Plan, PlanRequest, Terms

LOOK_SECONDS = 1.0
DEFAULT_CADENCE = 50
"""How often a run that kept snapshots would take one; to say what would be done in one that does not."""
MAX_TOLD = 256
"""Tainted checkpoints that a run is told of."""
ACTIONABLE = ("recovering", "lingering", "diverging")


@dataclass(frozen=True)
class _Case:
    """One trouble that may be worth a rollback."""

    trigger: str
    triage: Triage
    since: float
    """When it was detected; decisions after that are about it."""
    incident: int = 0
    is_in_hand: bool = False
    """Whether somebody has acknowledged it: what is done about it is theirs to say."""


class Policy:
    """The rollback of all jobs of a daemon."""

    def __init__(
        self, state: State, pipeline: Pipeline, sink: Sink, config: RollbackConfig, commander: Commander
    ) -> None:
        self._state = state
        self._sink = sink
        self._aftermath = Aftermath(pipeline, sink)
        self.config = config
        self.commander = commander

    # What agents say

    def terms(self, job: Job) -> Terms:
        """What a run is told that it may count on."""
        ours = [entry for entry in job.rollback.ledger.checkpoints if entry.is_ours]
        return Terms(
            rollback=self.config.mode,
            is_signed=self.commander.has_secret,
            is_holding=job.rollback.is_holding,
            tainted=tuple(sorted({entry.step for entry in ours if entry.health == "tainted"})[-MAX_TOLD:]),
            best=next((entry.step for entry in ours if entry.is_best), None),
            healthy=next((entry.step for entry in ours if entry.health == "healthy"), None),
        )

    def welcome(self, job: Job, hello: Hello) -> Terms | None:
        """What a rank is told when it introduces itself; nothing where its owner wants nothing of all this."""
        if hello.rollback == "off":
            return None
        terms = self.terms(job)
        job.rollback.terms = job.rollback.terms or terms
        return terms

    def held(self, job: Job, rank: int, holdings: Holdings) -> None:
        """A rank told what it holds."""
        job.rollback.holdings[rank] = holdings
        job.rollback.has_new_holdings = True

    def answered(self, job: Job, rank: int, ack: Ack, now: float) -> None:
        """A rank answered a command."""
        self.commander.answered(job, rank, ack, now)

    def plan(self, request: PlanRequest) -> Plan:
        """Where a process that is about to resume should resume from."""
        job = self._state.jobs.get(request.job)
        if job is None:
            return Plan(job=request.job, reason="this daemon does not know the job")
        record = job.rollback
        done = [d for d in record.decisions if d.state == "committed" and d.boundary is not None]

        def lr_scale_of(entry: LedgerEntry | None) -> float:
            # What was saved after a command has its learning rate already.
            scale = math.prod(d.lr_scale for d in done if entry is None or _is_before(entry, d))
            return min(scale, self.config.lr_scale) if record.exhausted else scale

        return make_plan(
            job.name,
            record.ledger,
            bad_spans.not_overcome(job),
            exhausted=record.exhausted,
            lr_scale_of=lr_scale_of,
            drops=[(d.boundary or 0, d.skip) for d in done if d.skip],
            world=request.world,
        )

    # What time brings

    def advance(self, now: float) -> list[tuple[Job, Terms]]:
        """Looks at every job that has news; returns the terms that have changed, for all ranks of each."""
        news = []
        for job in self._state.jobs.values():
            record = job.rollback
            has_news = record.looked_at != job.num_steps or record.has_new_answers or record.has_new_holdings
            if job.attempt is None or not (has_news or now >= record.next_look):
                continue
            record.looked_at, record.next_look = job.num_steps, now + LOOK_SECONDS
            self._look(job, job.attempt, now)
            terms = self.terms(job)
            if record.terms != terms:
                record.terms = terms
                news.append((job, terms))
        return news

    def _look(self, job: Job, attempt: Attempt, now: float) -> None:
        record = job.rollback
        record.mode = effective(self.config.mode, job)
        self.commander.advance(job, now)
        cases = list(self._cases(job, attempt))
        broken = self._aftermath.follow(job, attempt)
        if broken is not None and not cases:
            cases.append(_Case(*broken, since=attempt.began))
        record.is_holding = bool(cases)  # also of what people have in hand: their way back must not be pushed out
        self._keep_ledger(job, attempt, now)
        if job.state == "running" and not cases:
            record.exhausted = ""
        if record.mode == "off" or job.state != "running":
            return
        if record.in_flight is None and not self._hunt(job, attempt, now):
            for case in cases:
                if not case.is_in_hand and self._decide(job, attempt, case, now):
                    return

    def _hunt(self, job: Job, attempt: Attempt, now: float) -> bool:
        """Whether a hunt comes first: is asked for now, or ranks still tell what they found."""
        if hunting.is_awaited(job, attempt, now):
            return True
        wanted = hunting.wanted(job, attempt) if job.rollback.mode == "auto" else None
        if wanted is None or self._state.journal_error:
            return False
        incident, onset = wanted
        target, line = hunting.snapshot_for(job, attempt, onset)
        step = job.recent[-1].step if job.recent else 0
        boundary = self._boundary(job, attempt, 0)
        draft = Decision(
            job=job.name,
            number=job.rollback.next_number,
            time=now,
            attempt=attempt.number,
            step=step,
            mode=job.rollback.mode,
            kind="hunt",
            trigger=incident.id,
            target=target,
            boundary=boundary,
            onset=onset,
            why=(line,),
        )
        self.commander.give(job, draft, life_seconds=(boundary - step) * pace(job.recent))
        return True

    def _keep_ledger(self, job: Job, attempt: Attempt, now: float) -> None:
        """What is held, and how it is thought of; once a second is enough while nothing is wrong."""
        record = job.rollback
        if record.has_new_holdings:
            record.has_new_holdings = False
            if len(record.holdings) >= attempt.world:  # until then nothing is on all, and all health would be lost
                record.ledger.hold(on_all(record.holdings, attempt.world), attempt.number)
        elif not record.is_holding and now < record.next_judging:
            return
        record.next_judging = now + LOOK_SECONDS
        step = job.recent[-1].step if job.recent else 0
        record.ledger.judge(bad_spans.of(job), step, margin=self.config.margin_steps, quiet=self.config.quiet_steps)
        for entry in record.ledger.take_changes():
            self._sink.ledger_changed(job, entry)

    def _cases(self, job: Job, attempt: Attempt) -> Iterator[_Case]:
        """The troubles of this attempt that are open and moved the loss, the worst first."""
        record = job.rollback
        open_now = [i for i in job.incidents.open if bad_spans.open_members(i, attempt.number)]
        record.triages = {}
        record.notes = {}
        losses = Losses.of(job.recent, attempt.number) if open_now else None
        for incident in open_now:
            assert losses is not None, "made where there is something to judge"
            members = bad_spans.open_members(incident, attempt.number)
            triage = judge(losses, bad_spans.onset(incident, attempt.number), num_skipped=record.num_skipped)
            record.triages[incident.number] = triage
            if triage.verdict != "unmoved":
                since = min(member.detected_time for member in members)
                yield _Case(incident.id, triage, since, incident.number, incident.acknowledged is not None)

    # What is decided

    def _decide(self, job: Job, attempt: Attempt, case: _Case, now: float) -> bool:
        """Whether a decision was made on this trouble."""
        record, config, triage = job.rollback, self.config, case.triage
        about = [d for d in record.decisions if d.trigger == case.trigger and d.time >= case.since]
        before = [d for d in about if d.kind != "hunt"]  # which settles nothing
        settled = {"committed", "failed", "exhausted", *(("advised",) if record.mode == "advise" else ())}
        if triage.verdict not in ACTIONABLE or any(d.state in settled for d in before):
            return False
        if triage.age < config.patience_steps and math.isfinite(triage.remaining):
            return self._not_yet(job, case, f"{triage.age} steps after it began; patience is {config.patience_steps}")
        newest = max((member.step for member in attempt.members.values()), default=0)
        pending = max((d.boundary or 0 for d in about if d.state == "expired"), default=0)
        if newest <= pending:  # until they got there, or said that it is too late, ranks may still wait for that step
            return self._not_yet(job, case, f"time ran out before step {pending}; it is proposed again after that")
        num_tried = sum(d.kind == "rollback" and d.state in ("aborted", "expired") and not d.was_paused for d in before)
        rung = climb(record.decisions, triage.began, config)
        boundary = self._boundary(job, attempt, num_tried)
        until = max((record.cool_until, *self._own_cool_down(job)))
        if boundary < until and record.mode == "auto":
            return self._not_yet(job, case, f"the last rollback cools down until step {until}")
        target, line = self._target(job, attempt, case, rung)
        skip = rung.skip if all(holdings.can_skip for holdings in record.holdings.values()) else 0
        origin = self._latest(case) if target is None else target.step
        cost = weigh(triage, target=origin, boundary=boundary, skip=skip, caution=config.caution)
        if not cost.is_worth_it:
            return self._not_yet(job, case, cost.reason)
        draft = self._draft(job, attempt, case, rung, now)
        draft = msgspec.structs.replace(draft, num_tried=num_tried)
        if target is None:
            is_known = rung.number > 1 and len(record.holdings) >= attempt.world
            if is_known:
                return self._exhaust(job, draft, f"nothing is left to go back to: {line}", before)
            return self._refuse(job, draft, line, before)
        unskipped = "no batches are dropped: the run's loader is not watched (monitor.watch)"
        draft = msgspec.structs.replace(
            draft,
            cost=cost,
            target=target.step,
            boundary=boundary,
            skip=skip,
            lr_scale=rung.lr_scale,
            why=(line, *rung.why, *((unskipped,) if rung.skip > skip else ())),
        )
        if record.budget_left(config.budget, now) <= 0:
            whose = "the ranks' own budget of rollbacks"
            if spent(record.decisions, now) >= config.budget:
                whose = f"the budget of {config.budget} rollbacks a day"
            return self._exhaust(job, draft, f"{whose} is spent", before)
        if num_tried > config.retries:
            return self._exhaust(
                job, draft, f"it was proposed {num_tried} times and never were all ranks ready", before
            )
        if record.mode != "auto":
            self.commander.note(job, draft)
        elif self._state.journal_error:
            return self._refuse(job, draft, NO_TRAIL, before)
        else:
            self.commander.give(job, draft, life_seconds=(boundary - triage.step) * pace(job.recent))
        return True

    def _boundary(self, job: Job, attempt: Attempt, num_tried: int) -> int:
        """The first step at which all ranks can be expected to know."""
        newest = max((member.step for member in attempt.members.values()), default=0)
        steps = notice(pace(job.recent), self._state.lag_seconds, num_tried=num_tried)
        return ahead(newest, steps, stride(job.recent))

    def _latest(self, case: _Case) -> int:
        """The last step of which a snapshot could be gone back to."""
        return case.triage.began - self.config.margin_steps

    def _draft(self, job: Job, attempt: Attempt, case: _Case, rung: Rung, now: float) -> Decision:
        return Decision(
            job=job.name,
            number=job.rollback.next_number,
            time=now,
            attempt=attempt.number,
            step=case.triage.step,
            mode=job.rollback.mode,
            trigger=case.trigger,
            rung=rung.number,
            triage=case.triage,
        )

    def _target(self, job: Job, attempt: Attempt, case: _Case, rung: Rung) -> tuple[Held | None, str]:
        latest, record = self._latest(case), job.rollback
        if owners_mode(job) != "auto":
            step = latest // DEFAULT_CADENCE * DEFAULT_CADENCE
            line = (
                f"the run keeps no snapshots (attach(rollback={owners_mode(job)!r})): with auto on both sides it "
                f"would go back to the newest before step {latest}, about {step}"
            )
            return (Held(step, step, 0.0), line) if step > 0 else (None, line)
        return choose(
            record.holdings,
            attempt.world,
            latest=latest,
            older_than=rung.older_than,
            used=rung.used,
            taint_of=record.ledger.taint_of,
        )

    def _own_cool_down(self, job: Job) -> Iterator[int]:
        """By the rollbacks of these processes; a new launch may count its steps anew."""
        for decision in job.rollback.decisions:
            if decision.kind == "rollback" and decision.state == "committed" and decision.group == job.rollback.group:
                yield (decision.boundary or 0) + self.config.cooldown_steps

    def _not_yet(self, job: Job, case: _Case, why: str) -> bool:
        job.rollback.notes[case.incident] = why
        return False

    def _refuse(self, job: Job, draft: Decision, why: str, before: list[Decision]) -> bool:
        """Writes down once that something should be done and cannot."""
        job.rollback.notes[draft.incident] = why
        if any(decision.state == "refused" for decision in before):
            return False
        self.commander.note(
            job, msgspec.structs.replace(draft, state="refused", outcome=why, why=(), closed_time=draft.time)
        )
        return True

    def _exhaust(self, job: Job, draft: Decision, why: str, before: list[Decision]) -> bool:
        """Nothing is left to try: stops the run where its owner wants that and it can be resumed, and calls people."""
        record = job.rollback
        record.exhausted = why
        healthy = next((entry for entry in record.ledger.checkpoints if entry.health == "healthy"), None)
        may_stop = self.config.on_exhausted == "stop" and record.mode == "auto" and record.group
        num_stopped = sum(decision.kind == "stop" for decision in before)
        if may_stop and healthy is not None and job.attempt is not None and num_stopped <= self.config.retries:
            boundary = self._boundary(job, job.attempt, num_stopped)
            reason = f"{why}; stop, and resume from the checkpoint of step {healthy.step} ({healthy.name})"
            decision = msgspec.structs.replace(
                draft, kind="stop", target=None, boundary=boundary, skip=0, lr_scale=1.0, why=(reason,)
            )
            self.commander.give(job, decision, life_seconds=(boundary - draft.step) * pace(job.recent))
            return True
        self.commander.note(job, msgspec.structs.replace(draft, state="exhausted", outcome=why, closed_time=draft.time))
        return True


def _is_before(entry: LedgerEntry, decision: Decision) -> bool:
    """Whether it was saved before this was done; a later attempt may repeat its steps."""
    if entry.attempt != decision.attempt:
        return entry.attempt < decision.attempt
    return entry.step < (decision.boundary or 0)
