"""Whether a rule has seen a run from its beginning.

Design
------
"Flat since the beginning" and "near where it began" are claims about the first steps. A rule that is new in the middle
of a run (the daemon was restarted, the run resumed, its schedule begun anew) sees first steps that are not the run's,
and a converged run looks to it like one that never learned. So it asks, at the first step it sees. What counts is the
number of that step, and not that of the attempt: a run that is launched anew from step 0 has its beginning. A log's
first row is one, however its rows are numbered, unless the reader could tell that it goes on from another.
"""

from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.regimes import STARTUP_STEPS, Regime


def is_in_sight(first: AlignedStep, regime: Regime) -> bool:
    """Whether this step, the first that was seen, is among the first of the run."""
    return first.step <= STARTUP_STEPS or (not first.reports and "resume" not in regime.active)
