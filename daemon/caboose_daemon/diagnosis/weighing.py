"""Ranks the causes of an incident with their confidences, and decides when an incident is diagnosed again.

Design
------
Naive Bayes with few, round weights. Every cause starts with the same odds, less its rarity. Each piece of evidence
multiplies them. Each reported member that it does not explain divides them, and so does having no evidence for it;
otherwise fifty causes that are merely possible would crowd out the unknown. "Unknown" is a cause like the others that
explains everything and has no evidence: so a confidence can be high only where specific evidence supports a cause, and
all confidences add up to 1 with the unknown. Causes below 2 % are not shown, nor are those that nothing speaks for: a
list of what is merely possible is an invitation to trial and error, and their share belongs to the unknown. What is
shown is calibrated at last (see `calibration`), which changes no order.

What a cause explains is a list of its usual symptoms, not of all. A cause none of whose symptoms was reported competes
too, if one strong piece of evidence supports it and the incident is about numbers, as the cause is: a learning rate
does not explain the speed of a machine.

An incident is diagnosed when it opens and changes, and again when it has lasted twice as long as at the last diagnosis.
So a spike that lasts is judged with what followed it, at a cost that does not grow with its length.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator

import msgspec

from caboose_daemon.diagnosis.calibration import UNMEASURED, calibrated
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import STRONG, Cause, Evidence
from caboose_daemon.diagnosis.causes import CAUSES
from caboose_daemon.diagnosis.recent_numbers import recent_numbers
from caboose_daemon.diagnosis.refusals import refuse
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Diagnosis, RankedCause
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.incidents.incident_log import IncidentLog

logger = logging.getLogger("caboose.daemon")

START = -0.7
"""Log-odds of a cause against "unknown" before any evidence. At -1.0, diagnoses were right more often than sure."""
UNEXPLAINED = 0.7
"""Log-odds that a cause loses for each member that it does not explain."""
NOTHING_FOR_IT = 1.5
"""Log-odds that a cause loses if no evidence supports it."""
FOREIGN = 1.2
"""Log-odds that a cause loses beside if it explains none of the members."""
ABOUT_MACHINES = frozenset(
    {"rank_silent", "job_stalled", "straggler", "data_starved", "throughput_regression", "monitor_blind"}
)
"""Rules about processes and their speed."""
ABOUT_ITSELF = frozenset({"config_advice", "replica_desync", "eval_mode"})
"""Rules that see their causes, and no consequence: nothing else explains them."""
MIN_CONFIDENCE = 0.02
MAX_CAUSES = 6
MAX_HUNTS = 8
FIRST_REPEAT = 10
"""Steps after which an incident that only lasts is diagnosed again for the first time."""


def diagnose_due(
    log: IncidentLog, changed: Iterable[Incident], step: int, case_of: Callable[[Incident], Case]
) -> Iterator[Incident]:
    """Diagnoses new and changed incidents and those that are due again; yields them with their diagnosis."""
    changed = list(changed)
    numbers = {incident.number for incident in changed}
    lasting = [incident for incident in log.open if incident.number not in numbers and _is_due(incident, step)]
    for incident in (*changed, *lasting):
        yield log.diagnosed(incident.number, diagnose(case_of(incident))) or incident


def _is_due(incident: Incident, step: int) -> bool:
    if incident.diagnosis is None:
        return True
    age = incident.diagnosis.step - incident.opened_step
    return step - incident.opened_step >= 2 * max(FIRST_REPEAT, age)


def diagnose(case: Case, causes: Iterable[Cause] = CAUSES, *, with_possible: bool = False) -> Diagnosis:
    """The likely causes of the case's incident, with confidences.

    `with_possible` lists those that nothing speaks for as well: hypotheses, for somebody who is asked about them.
    """
    weighed = [(cause, evidence, score) for cause in causes for evidence, score in _weigh(cause, case)]
    odds = [math.exp(min(score, 30.0)) for _, _, score in weighed]
    total = 1.0 + sum(odds)
    ranked = sorted(zip(odds, weighed, strict=True), key=lambda pair: -pair[0])
    supported = [(odd, found) for odd, found in ranked if with_possible or any(e.weight > 0 for e in found[1])]
    shown = [
        RankedCause(
            id=cause.id,
            title=cause.title,
            confidence=odd / total,
            evidence_for=tuple(e.text for e in sorted(evidence, key=lambda e: -e.weight) if e.weight > 0),
            evidence_against=tuple(e.text for e in sorted(evidence, key=lambda e: e.weight) if e.weight < 0),
            advice=cause.advise(case),
        )
        for odd, (cause, evidence, _) in supported[:MAX_CAUSES]
        if odd / total >= MIN_CONFIDENCE
    ]
    remaining, refusals = refuse(case, shown)
    remaining = remaining if UNMEASURED & set(case.reportable_rules) else _with_confidences(remaining)
    return Diagnosis(
        step=case.step,
        causes=tuple(remaining),
        unknown=1.0 - sum(cause.confidence for cause in remaining),
        refusals=tuple(refusals),
        missing=tuple(_missing(case)),
        hunts=tuple(hunt.summary for hunt in case.hunts[:MAX_HUNTS]),
        numbers=tuple(recent_numbers(case)),
    )


def _with_confidences(causes: list[RankedCause]) -> list[RankedCause]:
    confidences = calibrated([cause.confidence for cause in causes])
    return [
        msgspec.structs.replace(cause, confidence=confidence)
        for cause, confidence in zip(causes, confidences, strict=True)
    ]


def _weigh(cause: Cause, case: Case) -> Iterable[tuple[list[Evidence], float]]:
    """The evidence and the log-odds; nothing where the cause does not compete."""
    rules = case.reportable_rules
    is_foreign = not any(rule in cause.explains for rule in rules)
    if is_foreign and not _may_compete(cause, rules):
        return
    try:
        evidence = list(cause.weigh(case))
    except Exception:
        # A cause handles unexpected data, as a rule does; if one fails, the others still count.
        logger.exception("cause %s failed on incident %s", cause.id, case.incident.id)
        return
    support = max((e.weight for e in evidence), default=0.0)
    if is_foreign and support < STRONG:
        return
    evidence += [Evidence(f"does not explain {rule}", -UNEXPLAINED) for rule in rules if rule not in cause.explains]
    lacks = 0.0 if support > 0 else NOTHING_FOR_IT
    penalty = lacks + (FOREIGN if is_foreign else 0.0)
    yield evidence, START - cause.rarity - penalty + sum(e.weight for e in evidence)


def _may_compete(cause: Cause, rules: Iterable[str]) -> bool:
    """Whether its evidence is a fault in any run, and all of these rules are about numbers."""
    symptoms = set(rules)
    return cause.is_plain and bool(symptoms) and not symptoms & (ABOUT_MACHINES | ABOUT_ITSELF)


def _missing(case: Case) -> Iterator[str]:
    """A line for each thing that was not visible and matters for the incident's rules, with the way to report it."""
    rules = set(case.reportable_rules)
    if rules & (STANDS_STILL | {"metric_divergence"}) and case.setting("num_classes") is None:
        yield "number of classes: attach(..., num_classes=N), to compare the loss with chance"
    if rules & STANDS_STILL and not case.has_validation:
        yield "validation loss: monitor.validation(loss), to distinguish a converged run from a stuck one"
    if rules & {"overfitting", "metric_divergence"} and case.is_live and not _has_score(case):
        yield "validation score: monitor.validation(loss, accuracy=...), to separate wrong from over-confident answers"
    if rules & {"overfitting", "underfitting"} and case.epochs_seen is None:
        yield "batch and dataset size: `for batch in monitor.watch(loader)`, to count epochs"
    if rules & {"data_starved"} and case.is_live and case.setting("num_workers") is None:
        yield "loader workers: pass the DataLoader itself to monitor.watch"
    if rules & {"bad_batch", "loss_spike", "non_finite"} and case.is_live and not _sees_batches(case):
        yield "batches: `for batch in monitor.watch(loader)`, to name the batch of a spike"
    if rules & (STANDS_STILL | {"frozen_parameters"}) and case.is_live and not case.sees("activations"):
        yield "activations: not visible in a compiled model; a run without torch.compile shows dead layers"
    if not case.is_live:
        why = "a log has curves only, " if case.recent else ""
        yield f"layers, ranks, updates and batches: {why}attach the agent"


def _sees_batches(case: Case) -> bool:
    reports = () if case.sampled is None else case.sampled.reports.values()
    return case.setting("batch_size") is not None or any(report.batch is not None for report in reports)


def _has_score(case: Case) -> bool:
    return any(found.score is not None for _, found in case.validations)
