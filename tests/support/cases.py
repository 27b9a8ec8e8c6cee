"""Cases for tests of the diagnosis: an incident made of findings, with the curves and settings a test names."""

from collections.abc import Mapping
from typing import Any

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.incidents.diagnosis_record import Diagnosis, RankedCause
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.steps.columns import StepSummary
from caboose_wire import Event, Group

CURVES = ("loss", "grad_norm", "lr", "step_seconds", "data_seconds", "num_samples")


def a_finding(rule: str, onset: int = 100, **changes: Any) -> Finding:
    """A warning of one rule."""
    fields: dict[str, Any] = {"severity": Severity.WARNING, "step": onset, "summary": f"{rule} was seen"}
    return Finding(**{**fields, "rule": rule, "onset_step": onset, **changes})


def a_case(*findings: Finding, curves: Mapping[str, Any] | None = None, **changes: Any) -> Case:
    """The case of these findings, all of one incident; `curves` begin at step 1."""
    members = tuple(
        Episode(
            id=number,
            attempt=1,
            first=finding,
            last=finding,
            severity=finding.severity,
            num_findings=1,
            detected_time=float(finding.step),
            last_time=float(finding.step),
            is_open=True,
            worst=finding,
            reported_step=finding.step,
        )
        for number, finding in enumerate(findings, start=1)
    )
    first = findings[0]
    incident = Incident(
        job="train",
        number=1,
        attempt=1,
        rule=first.rule,
        opened_step=first.step,
        opened_time=float(first.step),
        episodes=members,
    )
    length = max((len(values) for values in (curves or {}).values()), default=0)
    recent = [
        StepSummary(
            attempt=1,
            step=place + 1,
            time=float(place),
            loss_min=float(curves["loss_min"][place]) if curves and "loss_min" in curves else None,
            loss_max=float(curves["loss_max"][place]) if curves and "loss_max" in curves else None,
            agent_seconds=None,
            num_ranks=1,
            **{name: float(curves[name][place]) if curves and name in curves else None for name in CURVES},
        )
        for place in range(length)
    ]
    return Case(incident=incident, recent=recent, **changes)


def a_group(optimizer: str = "AdamW", **settings: Any) -> Group:
    """A parameter group of an optimizer."""
    return Group(name="0", optimizer=optimizer, settings={"lr": 1e-3, **settings})


def a_validation(step: int, loss: float, **metrics: float) -> Event:
    """An evaluation that was reported."""
    return Event(attempt=1, step=step, time=float(step), kind="validation", fields={"loss": loss, **metrics})


def order(diagnosis: Diagnosis) -> list[str]:
    """The causes' ids, the likeliest first."""
    return [cause.id for cause in diagnosis.causes]


def told(diagnosis: Diagnosis, cause: str) -> RankedCause:
    """What is said of one cause."""
    return next(ranked for ranked in diagnosis.causes if ranked.id == cause)
