"""Ranks the causes of an incident and says how sure it is.

Design
------
Naive Bayes with few, round weights. Every cause that explains a member begins with the same odds, less its rarity; each
piece of evidence multiplies them; each member worth a ticket that it does not explain divides them, and so does having
nothing in its favour, or fifty causes that merely could be would crowd out what is not known. "Unknown" is a
cause like the others, which explains everything and has no evidence: so confidences can only be high where something
specific speaks for a cause, and they add up to 1 with what is unknown. Causes below 2 % are not worth a reader's time.
"""

import logging
import math
from collections.abc import Iterable

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.causes import CAUSES
from caboose_daemon.diagnosis.evidence import Evidence
from caboose_daemon.diagnosis.missing import missing
from caboose_daemon.diagnosis.refusals import refuse
from caboose_daemon.incidents.diagnosis_record import Diagnosis, RankedCause

logger = logging.getLogger("caboose.daemon")

START = -1.0
"""Log-odds of a cause against "unknown" before anything was looked at."""
UNEXPLAINED = 0.7
"""What each member that a cause does not explain takes away."""
NOTHING_FOR_IT = 1.5
"""What a cause loses that nothing speaks for."""
MIN_CONFIDENCE = 0.02
MAX_CAUSES = 6
MAX_HUNTS = 8


def diagnose(case: Case, causes: Iterable[Cause] = CAUSES) -> Diagnosis:
    """The likely causes of the case's incident, with confidences."""
    weighed = [(cause, evidence, score) for cause in causes for evidence, score in _weigh(cause, case)]
    odds = [math.exp(min(score, 30.0)) for _, _, score in weighed]
    total = 1.0 + sum(odds)
    ranked = sorted(zip(odds, weighed, strict=True), key=lambda pair: -pair[0])
    shown = [
        RankedCause(
            id=cause.id,
            title=cause.title,
            confidence=odd / total,
            evidence_for=tuple(e.text for e in sorted(evidence, key=lambda e: -e.weight) if e.weight > 0),
            evidence_against=tuple(e.text for e in sorted(evidence, key=lambda e: e.weight) if e.weight < 0),
            advice=cause.advise(case),
        )
        for odd, (cause, evidence, _) in ranked[:MAX_CAUSES]
        if odd / total >= MIN_CONFIDENCE
    ]
    causes_told, refusals = refuse(case, shown)
    return Diagnosis(
        step=case.step,
        causes=tuple(causes_told),
        unknown=1.0 - sum(cause.confidence for cause in causes_told),
        refusals=tuple(refusals),
        missing=tuple(missing(case)),
        hunts=tuple(hunt.summary for hunt in case.hunts[:MAX_HUNTS]),
    )


def _weigh(cause: Cause, case: Case) -> Iterable[tuple[list[Evidence], float]]:
    """The evidence and the log-odds; nothing where the cause explains none of what was found."""
    told = case.reportable_rules
    explained = [rule for rule in told if rule in cause.explains]
    if not explained:
        return
    try:
        evidence = list(cause.weigh(case))
    except Exception:
        # A cause is code about the unexpected, as a rule is; if it fails, the others still speak.
        logger.exception("cause %s failed on incident %s", cause.id, case.incident.id)
        return
    evidence += [Evidence(f"it would not explain {rule}", -UNEXPLAINED) for rule in told if rule not in cause.explains]
    lacks = 0.0 if any(e.weight > 0 for e in evidence) else NOTHING_FOR_IT
    yield evidence, START - cause.rarity - lacks + sum(e.weight for e in evidence)
