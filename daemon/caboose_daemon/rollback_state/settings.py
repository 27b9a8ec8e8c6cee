"""`[rollback]` of caboose.toml: what may be done to a run, and when."""

from dataclasses import dataclass
from typing import Literal

from caboose_wire.expectation import MARGIN_STEPS

Exhausted = Literal["page", "stop"]


@dataclass(frozen=True)
class RollbackConfig:
    """`[rollback]`: what may be done to a run, and when."""

    mode: Literal["off", "advise", "auto"] = "advise"
    """off: no decisions. advise: decisions are shown, not carried out. auto: carried out if the run also allows it."""
    secret_file: str = ""
    """File with the secret that signs commands; the ranks need the same secret. Empty: this user's own, which agents of
    the same user on this machine find by themselves."""
    budget: int = 3
    """Rollbacks of one job in 24 hours; after that a person is needed. The ranks also have a budget."""
    cooldown_steps: int = 200
    """Steps after a rollback before the next one is considered."""
    margin_steps: int = MARGIN_STEPS
    """Steps before the onset by which a snapshot must have been taken; raise it if problems are detected late."""
    patience_steps: int = 10
    """Steps that a rollback which proves needless counts for, beside those it loses: the more, the longer it waits
    while a disturbance may still pass."""
    spike_steps: int = 30
    """A spike that is over this many steps after it began is left alone: earlier than that, a rollback needs evidence
    that it will not be."""
    caution: float = 1.25
    """The likely cost of waiting must be this many times that of a rollback."""
    horizon_steps: int = 1000
    """A problem within this many steps after a rollback counts as the same one, and the next rung is used."""
    quiet_steps: int = 100
    """Quiet steps after a snapshot or checkpoint that prove it healthy."""
    retries: int = 3
    """How often a rollback is proposed again if not all ranks were ready, each time with more notice."""
    lr_scale: float = 0.5
    """Learning rate factor if the same problem comes back."""
    on_exhausted: Exhausted = "page"
    """If rollback no longer helps: page a person, or stop for a restart from a healthy checkpoint."""

    def __post_init__(self) -> None:
        steps = ("cooldown_steps", "margin_steps", "patience_steps", "spike_steps", "quiet_steps")
        for name in ("budget", *steps, "retries"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)!r}: must not be below 0")
        if not self.caution >= 1:
            raise ValueError(f"caution = {self.caution!r}: must not be below 1")
        if not self.horizon_steps > 0:
            raise ValueError(f"horizon_steps = {self.horizon_steps!r}: must be above 0")
        if not 0 < self.lr_scale <= 1:
            raise ValueError(f"lr_scale = {self.lr_scale!r}: must be above 0 and at most 1")
