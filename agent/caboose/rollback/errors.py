"""The only exceptions that Caboose raises into a training loop, and only where rollback is `auto`."""


class RollbackFailed(RuntimeError):
    """All ranks agreed to act and could not: the run must not continue from an unknown state."""


class RollbackInDoubt(RuntimeError):
    """This rank was ready to act and cannot learn whether the others did: rank 0's process is gone or frozen."""


class RunStopped(RollbackFailed):
    """The run was stopped on all ranks at one step, to be restarted from a checkpoint (`caboose.resume_plan`)."""


class NotCarriedOut(RuntimeError):
    """A snapshot or checkpoint that all ranks agreed on failed; the run is unchanged. Never raised to the user."""
