"""A case for the diagnosis, from the facts of a run; an empty one without a run."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from caboose_daemon.config import Config
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import RECENT_STEPS
from caboose_daemon.offline.guided.symptoms import Symptom
from caboose_daemon.offline.runs.run import Run
from caboose_daemon.rules import RULES
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.steps.columns import StepSummary
from caboose_wire import Event, Group

VISIBLE = {"loss": "loss", "grad_norm": "gradients", "lr": "lr", "step_seconds": "phases"}
OF_CURVES = frozenset(
    {"loss_spike", "divergence", "not_learning", "plateau", "oscillation", "overfitting", "underfitting", "non_finite"}
    | {"gradient_explosion", "lr_schedule", "metric_divergence", "data_starved", "throughput_regression"}
)
"""Rules that can judge a log; all others lack data there."""
ANSWER_POINTS = 20
"""Points of a level given as an answer: enough for a level, too few for a trend."""
FIRST_ID = 1_000_000
"""First id of findings from answers; above all ids of a run."""


def fitting(run: Run | None, symptoms: Sequence[Symptom]) -> Incident | None:
    """The run's incident with most of these symptoms: then open before closed, later before earlier."""
    shown = [i for i in (run.found if run is not None else ()) if seen_in(i, symptoms)]
    return max(shown, key=lambda i: (len(seen_in(i, symptoms)), i.is_open, i.number), default=None)


def seen_in(incident: Incident, symptoms: Sequence[Symptom]) -> list[Symptom]:
    """Those of the symptoms that one of the incident's findings shows."""
    rules = {member.rule for member in incident.reportable}
    return [symptom for symptom in symptoms if rules & symptom.rules]


def declared(symptoms: Sequence[Symptom], step: int, name: str) -> Incident:
    """An incident from the user's description only; the first symptom leads."""
    members = tuple(reported(symptom, step, number) for number, symptom in enumerate(symptoms))
    return Incident(
        job=name, number=1, attempt=1, rule=symptoms[0].rule, opened_step=step, opened_time=0.0, episodes=members
    )


def reported(symptom: Symptom, step: int, number: int) -> Episode:
    """A symptom as the user reported it."""
    return sign(symptom.rule, step, f"reported by you: {symptom.text}", number=number)


def sign(
    rule: str, step: int, text: str, *, number: int, values: Mapping[str, float] | None = None, phase: str = ""
) -> Episode:
    """An episode with one finding from an answer."""
    finding = Finding(
        rule=rule,
        severity=Severity.WARNING,
        step=step,
        onset_step=step,
        summary=text,
        values=dict(values or {}),
        phase=phase,
    )
    return Episode(
        id=FIRST_ID + number,
        attempt=1,
        first=finding,
        last=finding,
        severity=Severity.WARNING,
        num_findings=1,
        detected_time=0.0,
        last_time=0.0,
        is_open=True,
        worst=finding,
        reported_step=step,
    )


def case_of(run: Run | None, incident: Incident) -> Case:
    """The facts of the run around the incident."""
    rules = Config().rules
    if run is None:
        return Case(incident=incident, recent=(), is_live=False, abstaining=dict.fromkeys(rules, ("a run",)))
    detail = run.detail
    attempt = max(member.attempt for member in incident.episodes)
    if not (run.attempts == attempt).any():
        attempt = int(run.attempts[-1]) if len(run.attempts) else 1
    visible = {VISIBLE[name] for name in run.curves if name in VISIBLE}
    if detail is not None:
        visible |= set(detail["visible"])
    abstaining: dict[str, Sequence[str]] = {r.name: sorted(r.needs - visible) for r in RULES if r.needs - visible}
    if detail is None:
        abstaining |= {rule: ("the agent",) for rule in rules if rule not in OF_CURVES}
    settings = dict(run.settings) if detail is None else dict(detail["config"])
    optimizer = str(settings.get("optimizer", ""))
    of_log = (Group("all", optimizer, settings),) if detail is None and settings else ()
    of_job = [] if detail is None else [Group(g["name"], g["optimizer"], g["settings"]) for g in detail["groups"]]
    return Case(
        incident=incident,
        recent=_recent(run, attempt),
        world=detail["world"] if detail is not None else 1,
        is_live=detail is not None,
        groups=of_job or of_log,
        facts={} if detail is None else detail["facts"],
        config=settings,
        events=_events(run),
        visible=frozenset(visible),
        abstaining=abstaining,
    )


def level(step: int, loss: float) -> list[StepSummary]:
    """A curve from an answer: some points at one loss, from the onset on."""
    return [
        StepSummary(1, step + i, float(i), loss, loss, loss, None, None, None, None, None, 1)
        for i in range(ANSWER_POINTS)
    ]


def _recent(run: Run, attempt: int) -> Sequence[StepSummary]:
    rows = np.flatnonzero(run.attempts == attempt)[-RECENT_STEPS:].tolist()

    def of(name: str, row: int) -> float | None:
        values = run.curves.get(name)
        return None if values is None or math.isnan(values[row]) else float(values[row])

    return [
        StepSummary(
            attempt=attempt,
            step=int(run.steps[row]),
            time=float(row),
            loss=of("loss", row),
            loss_min=of("loss_min", row),
            loss_max=of("loss_max", row),
            grad_norm=of("grad_norm", row),
            lr=of("lr", row),
            step_seconds=of("step_seconds", row),
            data_seconds=of("data_seconds", row),
            agent_seconds=None,
            num_ranks=1,
        )
        for row in rows
    ]


def _events(run: Run) -> list[Event]:
    return [
        Event(attempt=1, step=step, time=0.0, kind="validation", fields={"loss": loss, **others})
        for step, loss, others in run.validations
    ]
