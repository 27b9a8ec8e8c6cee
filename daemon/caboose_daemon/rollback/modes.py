"""Which mode is in force for a job: the lower of what its owner and the daemon allow."""

from caboose_daemon.jobs.job import Job
from caboose_daemon.steps.view import GONE
from caboose_wire.rollback import RollbackMode

ORDER: tuple[RollbackMode, ...] = ("off", "advise", "auto")


def owners_mode(job: Job) -> RollbackMode:
    """The lowest mode of the run's ranks: of the live ones, or of all once the run is over."""
    members = list(job.attempt.members.values()) if job.attempt is not None else []
    heard = [m for m in members if m.state == "live"] or [m for m in members if m.state in GONE]
    return min((m.hello.rollback for m in heard), key=ORDER.index, default="off")


def effective(daemons: RollbackMode, job: Job) -> RollbackMode:
    """The lower of the daemon's and the owner's mode."""
    return min(daemons, owners_mode(job), key=ORDER.index)
