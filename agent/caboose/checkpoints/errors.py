"""The errors of checkpoints: one may not be used, or could not be written or read."""

from pathlib import Path


class CheckpointRefused(ValueError):
    """This checkpoint is not loaded, and nothing was changed: it is partial, damaged, or of another run."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = Path(path)
        self.reason = reason


class CheckpointFailed(RuntimeError):
    """A checkpoint could not be written, or not read to its end; raised on all ranks."""
