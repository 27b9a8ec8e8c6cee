"""`[rollback]` of caboose.toml: what may be done to a run, and when."""

from dataclasses import dataclass
from typing import Literal

Exhausted = Literal["page", "stop"]


@dataclass(frozen=True)
class RollbackConfig:
    """`[rollback]`: what may be done to a run, and when."""

    mode: Literal["off", "advise", "auto"] = "advise"
    """off: nothing is decided. advise: what would be done is shown. auto: it is done, where the run allows it too."""
    secret_file: str = ""
    """Holds the secret that commands are signed with; the ranks need the same. Empty: they go out unsigned."""
    budget: int = 3
    """Rollbacks of one job in 24 hours; then people are called. The ranks have a budget of their own as well."""
    cooldown_steps: int = 200
    """Steps after a rollback before the next one is thought of."""
    margin_steps: int = 10
    """How long before the onset a snapshot must have been taken; raise it where trouble is noticed late."""
    patience_steps: int = 10
    """Steps after the onset before anything is done, unless the weights are lost."""
    caution: float = 1.25
    """How many times as much waiting must cost as going back."""
    horizon_steps: int = 1000
    """Trouble that comes within so many steps after a rollback is the same trouble again, and the ladder is climbed."""
    quiet_steps: int = 100
    """Quiet steps after a snapshot or checkpoint that prove it healthy."""
    retries: int = 3
    """How often a rollback that not all ranks were ready for is proposed again, each time with more notice."""
    lr_scale: float = 0.5
    """What the learning rate is multiplied by when the same trouble comes again."""
    on_exhausted: Exhausted = "page"
    """What to do when going back does not help: page, or stop for a restart from a healthy checkpoint."""

    def __post_init__(self) -> None:
        for name in ("budget", "cooldown_steps", "margin_steps", "patience_steps", "quiet_steps", "retries"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)!r}: must not be below 0")
        if not self.caution >= 1:
            raise ValueError(f"caution = {self.caution!r}: must not be below 1")
        if not self.horizon_steps > 0:
            raise ValueError(f"horizon_steps = {self.horizon_steps!r}: must be above 0")
        if not 0 < self.lr_scale <= 1:
            raise ValueError(f"lr_scale = {self.lr_scale!r}: must be above 0 and at most 1")
