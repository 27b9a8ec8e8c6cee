"""Judges an episode: what must hold whatever the fault was.

Design
------
The ranks' own files are the truth about what they did: each step's loss, each boundary at which they went back, each
answer to a command. The commands are those that the daemon really sent, as the network saw them. From both follows what
the losses must have been, and the reference computes that without Caboose. The journal is read after a SIGKILL.

What is not a problem: a rollback that did not happen, a write that was not acknowledged, a restart that was asked for.
"""

from dataclasses import dataclass, field
from typing import Any

from caboose_wire import Command
from chaos.journal import Journal
from chaos.plan import Episode
from chaos.ranks import Life, exit_seconds
from chaos.reference import Reference

MAX_LATER_SECONDS = 1.0
MAY_DIE = ("daemon_memory",)
"""Faults that may end the daemon: not every failed allocation can be survived. What it accepted must be there again."""

SAYS = {"committed": ("done",), "aborted": ("aborted", "refused"), "failed": ("failed",)}
"""The answers of a rank that make a decision's state true."""


@dataclass(frozen=True)
class Evidence:
    """All that is known about an episode."""

    episode: Episode
    code: int | None
    lives: list[Life]
    commands: list[Command]
    journal: Journal
    marks: list[str]
    accepted: list[int]
    errors: dict[str, float]
    deaths: list[str]
    left: list[int]
    daemon_log: str
    bare_exit_seconds: float


@dataclass
class Verdict:
    """What was wrong, and what was seen of rollbacks."""

    problems: list[str] = field(default_factory=list)
    num_committed: int = 0
    num_aborted: int = 0
    is_late: bool = False
    notes: dict[str, Any] = field(default_factory=dict)


def judge(evidence: Evidence, reference: Reference) -> Verdict:
    verdict = Verdict()
    _judge_losses(evidence, reference, verdict)
    _judge_agreement(evidence, verdict)
    _judge_exit(evidence, verdict)
    _judge_daemon(evidence, verdict)
    _judge_journal(evidence, verdict)
    _count_rollbacks(evidence, verdict)
    return verdict


def _judge_losses(evidence: Evidence, reference: Reference, verdict: Verdict) -> None:
    """Every life of every rank trained as it would have without Caboose, but for rollbacks that the daemon sent."""
    for life in evidence.lives:
        actions = []
        for boundary in life.rollbacks:
            sent = [c for c in evidence.commands if c.boundary == boundary and c.number in life.answered("done")]
            if not sent or sent[0].kind != "rollback":
                verdict.problems.append(f"{_name(life)} went back at step {boundary} without a command of the daemon")
                return
            command = sent[0]
            actions.append(
                {"boundary": boundary, "target": command.target, "skip": command.skip, "lr_scale": command.lr_scale}
            )
        request = {
            "sharding": evidence.episode.sharding,
            "seed": evidence.episode.seed,
            "bad_batch": evidence.episode.bad_batch,
            "steps": max(len(other.losses) for other in evidence.lives if other.restart == life.restart),
            "actions": actions,
        }
        expected = reference.losses(request)[life.rank]
        _compare(life, expected, verdict)


def _compare(life: Life, expected: list[str], verdict: Verdict) -> None:
    for step, (found, wanted) in enumerate(zip(life.losses, expected, strict=False), start=1):
        if found != wanted:
            verdict.problems.append(f"{_name(life)}: the loss of step {step} is {found}, without Caboose {wanted}")
            return


def _judge_agreement(evidence: Evidence, verdict: Verdict) -> None:
    """All ranks went back at the same steps, unless one was killed in between; those that ended did as many steps."""
    for restart in {life.restart for life in evidence.lives}:
        lives = [life for life in evidence.lives if life.restart == restart]
        if evidence.episode.mode == "advise" and any(life.rollbacks for life in lives):
            verdict.problems.append("a run that only takes advice was rolled back")
        is_whole = all(life.ended is not None for life in lives)
        shortest = min(len(life.rollbacks) for life in lives)
        if any(life.rollbacks[:shortest] != lives[0].rollbacks[:shortest] for life in lives):
            verdict.problems.append(f"ranks went back at different steps: {[life.rollbacks for life in lives]}")
        if is_whole and len({(len(life.losses), len(life.rollbacks)) for life in lives}) > 1:
            verdict.problems.append(f"ranks differ: {[(len(life.losses), life.rollbacks) for life in lives]}")


def _judge_exit(evidence: Evidence, verdict: Verdict) -> None:
    expected = 1 if evidence.episode.exit_code else 0  # torchrun's own, for whatever code of a rank
    if evidence.code != expected:
        verdict.problems.append(f"the run ended with {evidence.code}, without Caboose {expected}")
    last = max((life.restart for life in evidence.lives), default=0)
    final = [life for life in evidence.lives if life.restart == last]
    if len(final) < 2 or any(life.ended is None for life in final):
        verdict.problems.append("not all ranks came to the end of their training")
    num_lives = 2 if evidence.episode.fault == "rank_killed" else 1
    if last + 1 > num_lives:
        verdict.problems.append(f"torchrun restarted the ranks {last} times, without Caboose {num_lives - 1}")
    seconds = exit_seconds(final)
    verdict.notes["exit_seconds"] = round(seconds, 3)
    later = seconds - evidence.bare_exit_seconds
    if later > MAX_LATER_SECONDS:
        verdict.is_late = True
        verdict.problems.append(f"the ranks ended {later:.2f} s later than without Caboose")
    if evidence.left:
        verdict.problems.append(f"torchrun ended and left ranks behind: {evidence.left}")


def _judge_daemon(evidence: Evidence, verdict: Verdict) -> None:
    verdict.notes["deaths"] = evidence.deaths
    if evidence.deaths and evidence.episode.fault not in MAY_DIE:
        verdict.problems.append(f"the daemon ended by itself: {evidence.deaths}")
    if evidence.errors:
        verdict.problems.append(f"the daemon counted internal errors: {evidence.errors}")
    if "Traceback" in evidence.daemon_log and evidence.episode.fault not in MAY_DIE:
        verdict.problems.append("the daemon's log has a traceback")


def _judge_journal(evidence: Evidence, verdict: Verdict) -> None:
    journal = evidence.journal
    if journal.integrity != "ok":
        verdict.problems.append(f"the journal is damaged: {journal.integrity[:200]}")
    if journal.num_quarantined:
        verdict.problems.append(f"{journal.num_quarantined} rows of the journal could not be read back")
    lost = [mark for mark in evidence.marks if mark not in journal.marks]
    if lost:
        verdict.problems.append(f"{len(lost)} of {len(evidence.marks)} acknowledged writes are lost, first {lost[0]}")
    known = {decision.number for decision in journal.decisions}
    if missing := [number for number in evidence.accepted if number not in known]:
        verdict.problems.append(f"accepted rollbacks are not in the journal: {missing}")
    done = {boundary for life in evidence.lives for boundary in life.rollbacks}
    for decision in journal.decisions:
        said = SAYS.get(decision.state, ())
        if said and not any(decision.command in life.answered(*said) for life in evidence.lives):
            verdict.problems.append(f"decision {decision.number} is {decision.state}, and no rank answered so")
        if decision.state == "committed" and decision.kind == "rollback" and decision.boundary not in done:
            verdict.problems.append(f"decision {decision.number} is committed, and no rank went back")


def _count_rollbacks(evidence: Evidence, verdict: Verdict) -> None:
    for restart in {life.restart for life in evidence.lives}:
        lives = [life for life in evidence.lives if life.restart == restart]
        verdict.num_committed += max(len(life.rollbacks) for life in lives)
        done = {number for life in lives for number in life.answered("done")}
        sent = {command.number for command in evidence.commands if command.kind == "rollback"}
        refused = {number for life in lives for number in life.answered("aborted", "refused")}
        verdict.num_aborted += len((refused & sent) - done)
    verdict.notes["answers"] = [
        f"{_name(life)}: command {answer['command']} {answer['outcome']} {answer['detail'][:100]}"
        for life in evidence.lives
        for answer in life.answers
        if answer["command"] in {command.number for command in evidence.commands}
    ]
    verdict.notes["decisions"] = [decision.state for decision in evidence.journal.decisions]


def _name(life: Life) -> str:
    return f"rank {life.rank}" + (f" after restart {life.restart}" if life.restart else "")
