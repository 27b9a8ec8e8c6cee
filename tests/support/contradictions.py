"""Whether a diagnosis contradicts what is known: strong evidence against its first cause, and none as strong for it.

Design
------
The facts that exclude a cause are its own strong evidence against it. What is checked is that they decide: a cause that
such a fact excludes does not lead a diagnosis. Every diagnosis that a test of the daemon makes is checked.
"""

from collections.abc import Sequence

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import STRONG, Evidence
from caboose_daemon.diagnosis.causes import CAUSES
from caboose_daemon.incidents.diagnosis_record import RankedCause

BY_ID = {cause.id: cause for cause in CAUSES}
LIKELY = 0.5
"""Confidence from which on a reader acts on the first cause."""


def excluding(case: Case, cause: str) -> list[Evidence]:
    """The facts that exclude a cause in this case."""
    return [fact for fact in BY_ID[cause].weigh(case) if fact.weight <= -STRONG]


def contradiction(case: Case, ranked: Sequence[RankedCause]) -> str:
    """Why the first cause cannot be the one, where a reader would act on it; empty if nothing speaks against it."""
    if not ranked or ranked[0].confidence < LIKELY:
        return ""
    evidence = list(BY_ID[ranked[0].id].weigh(case))
    against = sum(fact.weight for fact in evidence if fact.weight <= -STRONG)
    support = sum(fact.weight for fact in evidence if fact.weight >= STRONG)
    if not against or support > -against:
        return ""
    facts = "; ".join(fact.text for fact in evidence if fact.weight <= -STRONG)
    return f"{ranked[0].id} leads with {ranked[0].confidence:.0%}, although {facts}"
