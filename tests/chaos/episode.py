"""One episode: a run, a rollback in it, and the fault that hits at that moment."""

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from chaos import oracle
from chaos.faults import FAULTS
from chaos.journal import read_journal
from chaos.launcher import Launcher
from chaos.plan import Episode
from chaos.reference import Reference
from chaos.stage import Stage, staged

START_SECONDS = 60.0
COMMAND_SECONDS = 8.0
"""How long a command is waited for; then the fault hits all the same."""
OUTCOME_SECONDS = 6.0
EXIT_SECONDS = 30.0
SETTLED = ("done", "aborted", "refused", "failed")
BREAKING = ("rank_killed", "rank_descriptors", "rank_threads", "daemon_descriptors", "network_cut")
"""Faults that would end the connection on which a held command waits."""
LATE_STEPS = 1
"""A held command reaches the ranks so many steps after its boundary."""


@dataclass
class Result:
    """How an episode ended."""

    plan: dict[str, Any]
    problems: list[str]
    seconds: float
    num_hits: int = 0
    num_committed: int = 0
    num_aborted: int = 0
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def is_passed(self) -> bool:
        return not self.problems


def run(
    episode: Episode, directory: Path, reference: Reference, launcher: Launcher, bare_exit: Callable[[bool], float]
) -> Result:
    """Runs it and judges it. The directory is left behind.

    `bare_exit` is how long the exit takes without Caboose; given True, it is measured again now.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    begun = time.monotonic()
    script = Script(episode)
    with staged(episode, directory, launcher) as stage:
        code = script.play(stage)
        stage.writer.close()
        stage.writer.read_errors()
        stage.daemon.note_death()
        stage.daemon.kill()
        journal = read_journal(stage.daemon.directory / "data")
    evidence = oracle.Evidence(
        episode=episode,
        code=code,
        lives=stage.ranks.lives,
        commands=stage.proxy.commands(),
        journal=journal,
        marks=stage.writer.marks,
        accepted=stage.writer.decisions,
        errors=stage.writer.errors,
        deaths=stage.daemon.deaths,
        left=stage.left,
        daemon_log=(stage.daemon.directory / "daemon.log").read_text(errors="replace"),
        bare_exit_seconds=bare_exit(False),
    )
    verdict = oracle.judge(evidence, reference)
    if verdict.is_late:  # compared side by side: the machine may have become busier
        verdict = oracle.judge(replace(evidence, bare_exit_seconds=bare_exit(True)), reference)
    return Result(
        plan=asdict(episode),
        problems=[*script.problems, *verdict.problems],
        seconds=time.monotonic() - begun,
        num_hits=script.num_hits,
        num_committed=verdict.num_committed,
        num_aborted=verdict.num_aborted,
        notes={**script.notes, **verdict.notes, "num_writes": len(stage.writer.marks)},
    )


class Script:
    """What is done to the stage, in order."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._fault = FAULTS[episode.fault]
        self.problems: list[str] = []
        self.notes: dict[str, Any] = {}
        self.num_hits = 0

    def play(self, stage: Stage) -> int | None:
        """Returns the run's exit code; None if it did not end."""
        episode = self._episode
        if not stage.wait_until(lambda: stage.ranks.step() >= 3, START_SECONDS):
            self.problems.append("the ranks did not begin to train")
            return stage.wait_for_exit(0)
        if episode.early_seconds and episode.fault != "rank_killed":
            stage.wait_until(lambda: stage.ranks.step() >= episode.at_step // 2, 20)
            self._hit(stage, episode.early_seconds)
        stage.wait_until(lambda: stage.ranks.step() >= episode.at_step, 30)
        if episode.intent == "advise":
            self._hit(stage, episode.seconds)
        else:
            self._roll_back(stage)
        return self._end(stage)

    def _hit(self, stage: Stage, seconds: float) -> None:
        self.num_hits += 1
        with self._fault(stage):
            stage.wait_until(lambda: False, seconds)
        stage.daemon.keep_up()

    def _roll_back(self, stage: Stage) -> None:
        """A rollback, and the fault between its command and its outcome."""
        episode = self._episode
        if episode.intent == "abort":
            stage.proxy.hold_commands(lambda command: stage.ranks.most() >= command.boundary + LATE_STEPS)
        if not stage.wait_until(lambda: self._is_commanded(stage), COMMAND_SECONDS):
            self.notes["no_command"] = True
        stage.wait_until(lambda: self._is_time(stage), OUTCOME_SECONDS)
        self._hit(stage, episode.seconds)
        if not stage.wait_until(lambda: _is_answered(stage, *SETTLED), OUTCOME_SECONDS):
            self.notes["no_outcome"] = True
        stage.proxy.hold_commands(None)
        stage.wait_until(lambda: False, 0.3)

    def _is_time(self, stage: Stage) -> bool:
        """Whether the fault hits now; the command is on its way."""
        episode = self._episode
        if episode.intent == "race":
            return stage.wait_until(lambda: False, episode.delay_seconds) or True
        if episode.fault in BREAKING and (episode.intent == "abort" or episode.fault == "rank_killed"):
            return _is_answered(stage, *SETTLED)
        return episode.intent == "abort" or _is_answered(stage, "accepted", *SETTLED)

    def _is_commanded(self, stage: Stage) -> bool:
        """Whether a command is on its way; asks for one, if the daemon is not to decide by itself."""
        if any(command.kind == "rollback" for command in stage.proxy.commands()):
            return True
        if not self._episode.is_by_policy and not stage.writer.decisions:
            refusal = stage.writer.ask_for_rollback(self._episode.skip, self._episode.lr_scale)
            if refusal:
                self.notes["refusal"] = refusal
                time.sleep(0.1)
        return False

    def _end(self, stage: Stage) -> int | None:
        """Lets the run end, with the fault or without it."""
        with contextlib.ExitStack() as stack:
            if self._episode.is_through_exit and stage.daemon.known is not None:
                self.num_hits += 1
                stack.enter_context(self._fault(stage))
            stage.let_end()
            code = stage.wait_for_exit(EXIT_SECONDS)
        stage.daemon.keep_up()
        return code


def _is_answered(stage: Stage, *outcomes: str) -> bool:
    """Whether every rank has answered the first command so, or is gone."""
    commands = [command.number for command in stage.proxy.commands() if command.kind == "rollback"]
    lives = [life for life in stage.ranks.lives if life.restart == 0]
    return bool(commands) and all(life.exited or commands[0] in life.answered(*outcomes) for life in lives)
