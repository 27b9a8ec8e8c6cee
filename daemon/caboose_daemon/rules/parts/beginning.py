"""Whether a rule has seen a run from its first step.

Design
------
"Flat since the start" and "near its first loss" are claims about the first steps. A rule that starts in the middle of a
run (the daemon was restarted, the run was resumed, its schedule was restarted) sees first steps that are not the run's
first, and a converged run looks to it like one that never learned. So it checks the first step that it sees. The number
of that step decides, not the attempt: a run that is launched again from step 0 has its start in view. The first row of
a log counts as a start whatever its number, unless the reader detected that the log continues another one.
"""

from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.regimes import STARTUP_STEPS, Regime


def is_start_of_run(first: AlignedStep, regime: Regime) -> bool:
    """Whether the first step that a rule sees is among the first steps of the run."""
    return first.step <= STARTUP_STEPS or (not first.reports and "resume" not in regime.active)
