"""The tools, with their arguments, their budgets, and what each is for.

Design
------
A tool is a function of a class whose docstring and annotations are all that an assistant sees of it. `Tool` adds the
budget. The answer is compact JSON of at most that many tokens: rows come in pages, and everything else is bounded
where it is made. An answer that is larger all the same becomes an error, so that no job can flood an assistant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from caboose_daemon.assistant import (
    comparing,
    curve_answers,
    history_answers,
    incident_answers,
    job_answers,
    knowledge_answers,
    rollback_answers,
)
from caboose_daemon.assistant.actions import Action, Actions
from caboose_daemon.assistant.reader import Reader
from caboose_daemon.out.api.client import Client

FRAME = 500
"""Tokens of an answer besides its rows, at most."""
BUDGETS = {
    "list_jobs": 2500,
    "job_status": 4000,
    "ranks": 2500,
    "events": 2000,
    "series": 4500,
    "steps": 3000,
    "layers": 2500,
    "layer": 1500,
    "findings": 3000,
    "incidents": 2500,
    "diagnosis": 5000,
    "history": 3000,
    "compare": 5000,
    "runbook": 2000,
    "rules": 2500,
    "rule": 4000,
    "rollbacks": 5000,
    "note": 1500,
    "acknowledge": 1500,
    "apply_lr_scale": 2500,
    "checkpoint": 2500,
    "rollback": 2500,
}
"""The most tokens that each tool answers with."""
MAX_OFFSET = 10**6
MAX_STEP = 2**53
JobName = Annotated[str, Field(description="Name of the job, as list_jobs gives it", min_length=1, max_length=128)]
Offset = Annotated[int, Field(description="next_offset of the page before", ge=0, le=MAX_OFFSET)]
Step = Annotated[int, Field(ge=0, le=MAX_STEP)]
Columns = Annotated[list[str], Field(description="Names of columns; empty: loss, grad_norm and lr", max_length=16)]
Stat = Literal["grad_norm", "update_ratio", "weight_norm", "grad_zeros", "activation_std", "dead", "saturated", "zeros"]
Confirm = Annotated[str, Field(description="Empty: a dry run. Else the confirm of that dry run", max_length=64)]
LrScale = Annotated[float, Field(description="Factor on the learning rate", ge=1e-3, le=10.0)]


@dataclass(frozen=True)
class Tool:
    """A function that a client can call by its name."""

    function: Callable[..., Any]
    acts: bool = False
    is_destructive: bool = False

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    @property
    def budget(self) -> int:
        return BUDGETS[self.name]


def for_rows(tool: str) -> int:
    """The tokens that the rows of an answer may take."""
    return BUDGETS[tool] - FRAME


class Reading:
    """The tools that read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reader = Reader(client)

    def tools(self) -> list[Tool]:
        return [
            Tool(self.list_jobs),
            Tool(self.job_status),
            Tool(self.ranks),
            Tool(self.events),
            Tool(self.series),
            Tool(self.steps),
            Tool(self.layers),
            Tool(self.layer),
            Tool(self.findings),
            Tool(self.incidents),
            Tool(self.diagnosis),
            Tool(self.history),
            Tool(self.compare),
            Tool(self.runbook),
            Tool(self.rules),
            Tool(self.rule),
            Tool(self.rollbacks),
        ]

    def list_jobs(self, offset: Offset = 0) -> job_answers.Jobs:
        """All jobs with state, health, step, loss, ranks, and the worst open incident of each."""
        return job_answers.list_jobs(self._reader, for_rows("list_jobs"), offset)

    def job_status(self, job: JobName) -> job_answers.Status:
        """One job in full: last numbers with units, model, settings, what is not monitored, which rules abstain."""
        return job_answers.status(self._reader, job)

    def ranks(self, job: JobName, offset: Offset = 0) -> job_answers.Ranks:
        """Every rank: host, state, step, seconds of silence, loss and times; failed and silent ones first."""
        return job_answers.ranks(self._reader, for_rows("ranks"), job, offset)

    def events(self, job: JobName, offset: Offset = 0) -> job_answers.Events:
        """What was declared: validations apart, notes, fixes, data switches, checkpoints. The newest first."""
        return job_answers.events(self._reader, for_rows("events"), job, offset)

    def series(
        self,
        job: JobName,
        columns: Columns = [],  # noqa: B006 - the SDK copies defaults
        points: Annotated[int, Field(description="About how many buckets", ge=2, le=curve_answers.MAX_POINTS)] = 30,
        from_step: Step | None = None,
        to_step: Step | None = None,
    ) -> curve_answers.Series:
        """Curves of a job, downsampled to buckets that keep their extremes; at most 6 columns at a time."""
        return curve_answers.series(self._reader, job, columns, points, from_step, to_step)

    def steps(
        self,
        job: JobName,
        attempt: Annotated[int, Field(description="Attempt of the step, as in incidents", ge=0, le=MAX_STEP)],
        step: Step,
        columns: Columns = [],  # noqa: B006 - the SDK copies defaults
        around: Annotated[int, Field(description="Steps on each side", ge=1, le=curve_answers.MAX_AROUND)] = 8,
    ) -> curve_answers.Steps:
        """Single steps before and after one step, not condensed: what happened at an onset."""
        return curve_answers.steps(self._reader, job, attempt, step, columns, around)

    def layers(
        self,
        job: JobName,
        stat: Stat = "grad_norm",
        smallest: Annotated[bool, Field(description="The smallest first, instead of the largest")] = False,
        offset: Offset = 0,
    ) -> curve_answers.Layers:
        """One statistic of every layer at the last samples, the most extreme layer first."""
        return curve_answers.layers(self._reader, for_rows("layers"), job, stat, smallest=smallest, offset=offset)

    def layer(self, job: JobName, name: Annotated[str, Field(min_length=1, max_length=256)]) -> curve_answers.Layer:
        """Every statistic of one layer at the last samples; the layer by its name."""
        return curve_answers.layer(self._reader, job, name)

    def findings(self, job: JobName, only_open: bool = False, offset: Offset = 0) -> incident_answers.Findings:
        """What single rules found, with the numbers they compared; also those too small for an incident."""
        return incident_answers.findings(self._reader, for_rows("findings"), job, only_open=only_open, offset=offset)

    def incidents(self, job: JobName, only_open: bool = False, offset: Offset = 0) -> incident_answers.Incidents:
        """The incidents of a job in short, open ones first: rule, severity, onset, likeliest cause."""
        return incident_answers.incidents(self._reader, for_rows("incidents"), job, only_open=only_open, offset=offset)

    def diagnosis(
        self,
        job: JobName,
        incident: Annotated[int | None, Field(description="Its number; none: the open ones", ge=0, le=MAX_STEP)] = None,
        offset: Offset = 0,
    ) -> incident_answers.Diagnosis:
        """Causes of the open incidents (or of one) with confidence, evidence for and against, first fix, refusals."""
        return incident_answers.diagnosis(self._reader, for_rows("diagnosis"), job, incident, offset)

    def history(
        self,
        job: Annotated[str, Field(description="Empty: all jobs", max_length=128)] = "",
        rule: Annotated[str, Field(description="Only incidents led by this rule", max_length=64)] = "",
        cause: Annotated[str, Field(description="Only with this likeliest cause", max_length=64)] = "",
        since_hours: Annotated[float | None, Field(ge=0)] = None,
        offset: Offset = 0,
    ) -> history_answers.History:
        """Past incidents of all jobs with their causes and what resolved them, the newest first."""
        return history_answers.history(
            self._client, for_rows("history"), job=job, rule=rule, cause=cause, since_hours=since_hours, offset=offset
        )

    def compare(
        self, jobs: Annotated[list[str], Field(description="Names of 2 to 8 jobs", min_length=2, max_length=8)]
    ) -> comparing.Comparison:
        """Jobs compared at their last common step: loss, speed, stability, settings, which setting gets credit."""
        return comparing.compared(self._client, jobs)

    def runbook(
        self,
        name: Annotated[str, Field(description="A rule, or an alert such as CabooseLossSpike", max_length=64)],
        part: Annotated[int, Field(ge=0, le=100)] = 0,
    ) -> knowledge_answers.Runbook:
        """What to do about an alert, and what not to do. Written by Caboose's authors, not by the job."""
        return knowledge_answers.runbook(name, part, for_rows("runbook"))

    def rules(self, offset: Offset = 0) -> knowledge_answers.Rules:
        """Every rule: what it watches, whether it is enabled, its highest severity."""
        return knowledge_answers.rules(self._reader, for_rows("rules"), offset)

    def rule(self, name: Annotated[str, Field(max_length=64)]) -> knowledge_answers.Rule:
        """One rule: how it decides, its thresholds in force, its inputs, its state in each job."""
        return knowledge_answers.rule(self._reader, name)

    def rollbacks(self, job: JobName, offset: Offset = 0) -> rollback_answers.Rollbacks:
        """Rollback state, snapshots and checkpoints with their health, and every decision with its outcome."""
        return rollback_answers.rollbacks(self._reader, for_rows("rollbacks") - FRAME, job, offset)


class Acting:
    """The tools that act; only with --allow-actions."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions

    def tools(self) -> list[Tool]:
        return [
            Tool(self.note, acts=True),
            Tool(self.acknowledge, acts=True),
            Tool(self.apply_lr_scale, acts=True, is_destructive=True),
            Tool(self.checkpoint, acts=True),
            Tool(self.rollback, acts=True, is_destructive=True),
        ]

    def note(
        self,
        job: JobName,
        text: Annotated[str, Field(min_length=1, max_length=500)],
        kind: Literal["note", "fix"] = "note",
        confirm: Confirm = "",
    ) -> Action:
        """Records a note or a fix about a run; `fix` lets `caboose verify` judge whether it helped."""
        return self._actions.note(job, text, kind, confirm)

    def acknowledge(
        self,
        job: JobName,
        incident: Annotated[int, Field(description="Its number", ge=0, le=MAX_STEP)],
        reason: Annotated[str, Field(description="Why it need not page", min_length=1, max_length=500)],
        confirm: Confirm = "",
    ) -> Action:
        """Acknowledges an incident: it stays open, and its alert stops."""
        return self._actions.acknowledge(job, incident, reason, confirm)

    def apply_lr_scale(self, job: JobName, lr_scale: LrScale, confirm: Confirm = "") -> Action:
        """Multiplies the learning rate, on all ranks at one step or on none. The run must allow rollback auto."""
        return self._actions.scale_lr(job, lr_scale, confirm)

    def checkpoint(self, job: JobName, confirm: Confirm = "") -> Action:
        """Saves a checkpoint to disk, at one step on all ranks. The run must allow rollback auto."""
        return self._actions.checkpoint(job, confirm)

    def rollback(
        self,
        job: JobName,
        to_step: Annotated[int | None, Field(description="Of a snapshot; none: the newest", ge=0, le=MAX_STEP)] = None,
        skip_steps: Annotated[int, Field(description="Steps of data to skip afterwards", ge=0, le=100_000)] = 0,
        lr_scale: LrScale = 1.0,
        confirm: Confirm = "",
    ) -> Action:
        """Rolls a run back to a snapshot, on all ranks at one step or on none. Budget and cool-down apply."""
        return self._actions.rollback(job, to_step, skip_steps, lr_scale, confirm)
