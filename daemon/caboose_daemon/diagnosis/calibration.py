"""Turns the share of the belief that the first cause has into how often such a first cause is right.

Design
------
Naive Bayes with round weights ranks well and is a poor judge of its own certainty: pieces of evidence that depend on
each other count twice, and "unknown" holds a share that measured runs do not bear out. How often a first cause is right
depends on how far it is ahead of what comes second, another cause or the unknown. The logarithm of that goes into a
logistic curve of two constants, fitted on runs with a known fault that no rule or cause had been mended by:

    python bench/randomised.py --half tune --report --fit     # on results as they were recorded, without calibration

Of two causes that are alike at most one is right, so the first has no more than its share of the squares of both: with
its plain share of the two it was right more often than it said. The others and
the unknown share the rest as before. Where the unknown has more of the belief than any cause, no cause is named, and
nothing is changed. Nor is it for faults of processes and replicas, which were not measured.
"""

import math
from collections.abc import Sequence

AT_A_TIE, PER_LEAD = 1.85, 0.59
"""Log-odds of being right where what comes second is as likely, and per factor e by which it is less so."""
LEAST = 0.02
"""Share of the belief below which a second cause is not shown; what comes second counts as this much at least."""

UNMEASURED = frozenset({"rank_silent", "job_stalled", "monitor_blind", "replica_desync"})
"""Rules of whose incidents there were no runs."""


def lead(shares: Sequence[float]) -> float:
    """How far the first of these shares is ahead of the second, or of the unknown, as a logarithm."""
    return math.log(shares[0] / max([LEAST, 1.0 - sum(shares), *shares[1:2]]))


def calibrated(shares: Sequence[float]) -> list[float]:
    """The shares of the causes, the largest first, as confidences; what is left to 1 is the unknown's."""
    if not shares or lead(shares) < 0.0:
        return list(shares)
    of_two = shares[0] ** 2 / sum(share**2 for share in shares[:2])
    first = min(of_two, 1.0 / (1.0 + math.exp(-(AT_A_TIE + PER_LEAD * lead(shares)))))
    rest = (1.0 - first) / max(1.0 - shares[0], 1e-12)
    return [first, *(share * rest for share in shares[1:])]
