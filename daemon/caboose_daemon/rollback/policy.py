"""Decides when a run is rolled back, and has it done if both the daemon and the run allow it.

Design
------
Called once per turn of the loop, after the steps were judged, with the state's lock held. A job is checked if steps
were judged since the last check, or a second has passed. Each open incident with broken numbers is triaged; the first
one for which waiting costs more than a rollback gets a decision. While a command is on its way nothing else is decided.

A decision is made once per problem, not at every step. Earlier decisions are read from the record, which the journal
keeps, so a restarted daemon neither forgets nor repeats one. In mode `advise` the decision is made and recorded, and
nothing is sent.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from caboose_daemon.jobs.job import Attempt, Job
from caboose_daemon.jobs.pipeline import Pipeline, Sink
from caboose_daemon.jobs.state import State
from caboose_daemon.rollback import bad_spans, hunting
from caboose_daemon.rollback.aftermath import Aftermath, start_of
from caboose_daemon.rollback.attribution import attribute
from caboose_daemon.rollback.commander import NO_JOURNAL, Commander
from caboose_daemon.rollback.hindsight import look_back
from caboose_daemon.rollback.modes import effective, owners_mode
from caboose_daemon.rollback.plan import make_plan
from caboose_daemon.rollback.target import ahead, choose, notice, on_all, pace, stride
from caboose_daemon.rollback_state.cost import weigh
from caboose_daemon.rollback_state.decision import Decision, number_of
from caboose_daemon.rollback_state.ladder import Rung, climb, spent
from caboose_daemon.rollback_state.ledger import LedgerEntry
from caboose_daemon.rollback_state.loss_level import Losses
from caboose_daemon.rollback_state.record import Weighed
from caboose_daemon.rollback_state.settings import RollbackConfig
from caboose_daemon.rollback_state.triage import Triage, judge
from caboose_daemon.steps.settings import number
from caboose_wire import Ack, Held, Hello, Holdings, Plan, PlanRequest, Terms

CHECK_SECONDS = 1.0
DEFAULT_CADENCE = 10
"""Assumed snapshot interval in steps, to advise a run that keeps no snapshots."""
MAX_TAINTED = 256
"""Tainted checkpoints listed in the terms."""
ACTIONABLE = ("recovering", "lingering", "diverging")


@dataclass(frozen=True)
class _Case:
    """One problem that may need a rollback."""

    trigger: str
    triage: Triage
    since: float
    """When it was detected; later decisions are about it."""
    incident: int = 0
    is_acknowledged: bool = False
    """Acknowledged incidents are left to the person who acknowledged them."""


class Policy:
    """Rollback for all jobs of a daemon."""

    def __init__(
        self, state: State, pipeline: Pipeline, sink: Sink, config: RollbackConfig, commander: Commander
    ) -> None:
        self._state = state
        self._sink = sink
        self._aftermath = Aftermath(pipeline, sink)
        self.config = config
        self.commander = commander

    # Messages from agents

    def terms(self, job: Job) -> Terms:
        """The terms sent to a run."""
        ours = [entry for entry in job.rollback.ledger.checkpoints if entry.is_ours]
        return Terms(
            rollback=self.config.mode,
            is_signed=self.commander.has_secret,
            is_holding=job.rollback.is_holding,
            tainted=tuple(sorted({entry.step for entry in ours if entry.health == "tainted"})[-MAX_TAINTED:]),
            best=next((entry.step for entry in ours if entry.is_best), None),
            healthy=next((entry.step for entry in ours if entry.health == "healthy"), None),
        )

    def welcome(self, job: Job, hello: Hello) -> Terms | None:
        """The terms for a new rank; None if its rollback mode is off."""
        if hello.rollback == "off":
            return None
        terms = self.terms(job)
        job.rollback.terms = job.rollback.terms or terms
        return terms

    def held(self, job: Job, rank: int, holdings: Holdings) -> None:
        """Takes a rank's list of snapshots."""
        job.rollback.holdings[rank] = holdings
        job.rollback.has_new_holdings = True

    def answered(self, job: Job, rank: int, ack: Ack, now: float) -> None:
        self.commander.answered(job, rank, ack, now)

    def plan(self, request: PlanRequest) -> Plan:
        """The plan for a process that is about to resume."""
        job = self._state.jobs.get(request.job)
        if job is None:
            return Plan(job=request.job, reason="this daemon does not know the job")
        record = job.rollback
        done = [d for d in record.decisions if d.state == "committed" and d.boundary is not None]

        def lr_scale_of(entry: LedgerEntry | None) -> float:
            # States saved after a command already have its learning rate.
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

    # Periodic checks

    def advance(self, now: float, between: Callable[[], None] = lambda: None) -> list[tuple[Job, Terms]]:
        """Checks every job that has changed; returns the terms to send to all ranks of each job.

        `between` is called after each check: the loop lets readers in.
        """
        news = []
        for job in list(self._state.jobs.values()):
            record = job.rollback
            has_news = record.num_steps_seen != job.num_steps or record.has_new_answers or record.has_new_holdings
            is_due = job.attempt is not None and not job.faults.is_quarantined
            if not is_due or not (has_news or now >= record.next_check):
                continue
            record.num_steps_seen, record.next_check = job.num_steps, now + CHECK_SECONDS
            with self._state.guard.watch("policy", job, now):
                news += self._new_terms(job, now)
            between()
        return news

    def _new_terms(self, job: Job, now: float) -> list[tuple[Job, Terms]]:
        """Checks one job; its terms, where they have changed."""
        assert job.attempt is not None, "only a job with an attempt is checked"
        self._check(job, job.attempt, now)
        terms, known = self.terms(job), job.rollback.terms
        job.rollback.terms = terms
        return [] if terms == known else [(job, terms)]

    def _check(self, job: Job, attempt: Attempt, now: float) -> None:
        record = job.rollback
        record.mode = effective(self.config.mode, job)
        self.commander.advance(job, now)
        cases = list(self._cases(job, attempt))
        broken = self._aftermath.follow(job, attempt)
        if broken is not None and not cases:
            cases.append(_Case(*broken, since=attempt.began))
        look_back(job, self._sink)
        is_away = record.mode == "auto" and record.suspicion.observe(
            job.recent, attempt.number, record.lineage(attempt.number)
        )
        record.is_holding = bool(cases) or is_away  # also if acknowledged: older snapshots must not be replaced
        self._keep_ledger(job, attempt, now)
        if job.state == "running" and not cases:
            record.exhausted = ""
        if record.mode == "off" or job.state != "running":
            return
        if record.in_flight is None and not self._hunt(job, attempt, now):
            for case in cases:
                if not case.is_acknowledged and self._decide(job, attempt, case, now):
                    return

    def _hunt(self, job: Job, attempt: Attempt, now: float) -> bool:
        """Whether a hunt comes first: requested now, or results are still arriving."""
        if hunting.is_awaited(job, attempt, now):
            return True
        wanted = hunting.wanted(job, attempt) if job.rollback.mode == "auto" else None
        if wanted is None or self._state.journal_error:
            return False
        incident, onset = wanted
        target, line = hunting.snapshot_for(job, attempt, onset)
        step = job.recent[-1].step if job.recent else 0
        boundary = self._boundary(job, attempt, 1)  # as a second try: a hunt has only one
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
        """Updates the ledger; once per second while no incident is open."""
        record = job.rollback
        if record.has_new_holdings:
            record.has_new_holdings = False
            if (
                len(record.holdings) >= attempt.world
            ):  # earlier, no snapshot is on all ranks and every entry would be dropped
                record.ledger.hold(on_all(record.holdings, attempt.world), attempt.number)
        elif not record.is_holding and now < record.next_judging:
            return
        record.next_judging = now + CHECK_SECONDS
        step = job.recent[-1].step if job.recent else 0
        record.ledger.judge(bad_spans.of(job), step, margin=self.config.margin_steps, quiet=self.config.quiet_steps)
        for entry in record.ledger.take_changes():
            self._sink.ledger_changed(job, entry)

    def _cases(self, job: Job, attempt: Attempt) -> Iterator[_Case]:
        """The open problems of this attempt that moved the loss, the worst first."""
        record = job.rollback
        open_now = [i for i in job.incidents.open if bad_spans.open_episodes(i, attempt.number)]
        record.triages = {}
        record.notes = {}
        record.weighed = {n: w for n, w in record.weighed.items() if any(i.number == n for i in open_now)}
        losses = Losses.of(job.recent, attempt.number, record.lineage(attempt.number)) if open_now else None
        for incident in open_now:
            assert losses is not None, "set if there is an open incident"
            episodes = bad_spans.open_episodes(incident, attempt.number)
            triage = judge(
                losses,
                bad_spans.onset(incident, attempt.number),
                num_skipped=record.num_skipped,
                start=start_of(job),
                total_steps=number("total_steps", job.config, job.facts),
            )
            record.triages[incident.number] = triage
            if triage.verdict != "unmoved":
                since = min(episode.detected_time for episode in episodes)
                yield _Case(incident.id, triage, since, incident.number, incident.acknowledged is not None)

    # Decisions

    def _decide(self, job: Job, attempt: Attempt, case: _Case, now: float) -> bool:
        """Whether a decision was made on this problem."""
        record, config, triage = job.rollback, self.config, case.triage
        about = [d for d in record.decisions if d.trigger == case.trigger and d.time >= case.since]
        before = [d for d in about if d.kind != "hunt"]  # a hunt settles nothing
        settled = {"committed", "failed", "exhausted", *(("advised",) if record.mode == "advise" else ())}
        if triage.verdict not in ACTIONABLE or any(d.state in settled for d in before):
            return False
        newest = max((member.step for member in attempt.members.values()), default=0)
        pending = max((d.boundary or 0 for d in about if d.state == "expired"), default=0)
        if newest <= pending:  # ranks may still act at that step until they have passed it
            return self._not_yet(
                job, case, f"the command expired before step {pending}; it is proposed again after that step"
            )
        num_tried = sum(d.kind == "rollback" and d.state in ("aborted", "expired") and not d.was_paused for d in before)
        attribution = attribute(job, job.incidents.find(number_of(case.trigger)), triage.began)
        came_back = attempt.start_step if attempt.reason == "rollback" else 0  # not before it, wherever it began
        rung = climb(record.decisions, max(came_back, triage.began), config, attribution)
        boundary = self._boundary(job, attempt, num_tried)
        until = max((record.cool_until, *self._own_cool_down(job)))
        if boundary < until and record.mode == "auto":
            return self._not_yet(job, case, f"cool-down after the last rollback until step {until}")
        target, line = self._target(job, attempt, case, rung)
        skip = rung.skip if all(holdings.can_skip for holdings in record.holdings.values()) else 0
        origin = self._latest(case) if target is None else target.step
        cost = weigh(
            triage,
            target=origin,
            boundary=boundary,
            skip=skip,
            caution=config.caution,
            patience=config.patience_steps,
            spike_steps=config.spike_steps,
            restore_steps=self._restore_steps(job),
        )
        record.weighed[case.incident] = Weighed(cost, None if target is None else target.step, boundary)
        if not cost.is_worth_it:
            return self._not_yet(job, case, cost.reason)
        draft = self._draft(job, attempt, case, rung, now)
        draft = msgspec.structs.replace(draft, num_tried=num_tried, attribution=attribution)
        if target is None:
            is_known = rung.number > 1 and len(record.holdings) >= attempt.world
            if is_known:
                return self._exhaust(job, draft, f"no snapshot is left to roll back to: {line}", before)
            return self._refuse(job, draft, line, before)
        draft = msgspec.structs.replace(
            draft,
            cost=cost,
            target=target.step,
            boundary=boundary,
            skip=skip,
            lr_scale=rung.lr_scale,
            why=(line, *rung.why, *_cannot_skip(rung, skip, record.holdings.values())),
        )
        if record.budget_left(config.budget, now) <= 0:
            budget = "the ranks' rollback budget"
            if spent(record.decisions, now) >= config.budget:
                budget = f"the budget of {config.budget} rollbacks per day"
            return self._exhaust(job, draft, f"{budget} is spent", before)
        if num_tried > config.retries:
            return self._exhaust(job, draft, f"proposed {num_tried} times, never with all ranks ready", before)
        if record.mode != "auto":
            self.commander.note(job, draft)
        elif self._state.journal_error:
            return self._refuse(job, draft, NO_JOURNAL, before)
        else:
            self.commander.give(job, draft, life_seconds=(boundary - triage.step) * pace(job.recent))
        return True

    def _boundary(self, job: Job, attempt: Attempt, num_tried: int) -> int:
        """The first step by which all ranks should have the command."""
        newest = max((member.step for member in attempt.members.values()), default=0)
        steps = notice(pace(job.recent), job.lag_seconds, num_tried=num_tried)
        return ahead(newest, steps, stride(job.recent))

    def _restore_steps(self, job: Job) -> float:
        """Steps of training that the copy back takes the time of: about that of a snapshot."""
        seconds = max((holdings.snapshot_seconds for holdings in job.rollback.holdings.values()), default=0.0)
        return seconds / max(pace(job.recent), 1e-6)

    def _latest(self, case: _Case) -> int:
        """The last step whose snapshot can be used.

        A loss that rises slowly was damaged before that could be seen in its noise: the longer it took, the earlier.
        One that is high at once began where it was seen.
        """
        triage = case.triage
        return triage.began - max(self.config.margin_steps, math.ceil(triage.hidden_for))

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
            triage=msgspec.structs.replace(case.triage, futures=None),
        )

    def _target(self, job: Job, attempt: Attempt, case: _Case, rung: Rung) -> tuple[Held | None, str]:
        latest, record = self._latest(case), job.rollback
        if owners_mode(job) != "auto":
            step = latest // DEFAULT_CADENCE * DEFAULT_CADENCE
            line = (
                f"the run keeps no snapshots (attach(rollback={owners_mode(job)!r})); with auto in both the daemon and "
                f"the run it would roll back to the newest before step {latest}, about step {step}"
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
        """Ends of the cool-downs after rollbacks of these processes; a restart may reset the step count."""
        for decision in job.rollback.decisions:
            if decision.kind == "rollback" and decision.state == "committed" and decision.group == job.rollback.group:
                yield (decision.boundary or 0) + self.config.cooldown_steps

    def _not_yet(self, job: Job, case: _Case, why: str) -> bool:
        job.rollback.notes[case.incident] = why
        return False

    def _refuse(self, job: Job, draft: Decision, why: str, before: list[Decision]) -> bool:
        """Records once that an action is needed but not possible."""
        job.rollback.notes[draft.incident] = why
        if any(decision.state == "refused" for decision in before):
            return False
        self.commander.note(
            job, msgspec.structs.replace(draft, state="refused", outcome=why, why=(), closed_time=draft.time)
        )
        return True

    def _exhaust(self, job: Job, draft: Decision, why: str, before: list[Decision]) -> bool:
        """Nothing is left to try: stops the run if configured and resumable, else marks it exhausted."""
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


def _cannot_skip(rung: Rung, skip: int, holdings: Iterable[Holdings]) -> Iterator[str]:
    """States that batches cannot be skipped, in a run whose loader is not watched."""
    if rung.skip > skip:
        yield f"{rung.skip} steps of data should be skipped and are not: the loader is not watched (monitor.watch)"
    elif not all(each.can_skip for each in holdings):
        yield "no more batches can be skipped than those already fed: the loader is not watched (monitor.watch)"


def _is_before(entry: LedgerEntry, decision: Decision) -> bool:
    """Whether it was saved before the decision took effect; a later attempt may repeat its steps."""
    if entry.attempt != decision.attempt:
        return entry.attempt < decision.attempt
    return entry.step < (decision.boundary or 0)
