"""What a problem is attributed to, where that changes what a rollback should do."""

from typing import Literal

import msgspec

AttributedTo = Literal["schedule_jump", "bad_batch", "bad_rank"]
"""schedule_jump: the schedule raised the learning rate at once. bad_batch: some batches are bad, the rest is well.
bad_rank: the machine of one rank makes wrong numbers."""


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """Why a problem began, as far as it is known, and what follows from it."""

    to: AttributedTo
    text: str
    """The evidence, in one line."""
    lr_scale: float = 1.0
    """The factor that brings the learning rate back to what it was; 1 where it needs none."""
    rank: int | None = None
    host: str = ""
    num_times: int = 1
    """How often this rank or host was the first with wrong numbers."""


class Cordon(msgspec.Struct, frozen=True, kw_only=True):
    """Advice to take a machine out of the job: a rollback does not repair it."""

    rank: int
    host: str
    num_times: int
    why: str

    @property
    def text(self) -> str:
        """In one line."""
        where = f"host {self.host} (rank {self.rank})" if self.host else f"the host of rank {self.rank}"
        return (
            f"cordon {where}: {self.why}; a rollback does not repair it, restart the run without it "
            "(and check its shard of the data if the machine passes a test)"
        )


def cordon_of(attribution: Attribution | None) -> Cordon | None:
    """The advice, if a machine is at fault."""
    if attribution is None or attribution.to != "bad_rank" or attribution.rank is None:
        return None
    return Cordon(rank=attribution.rank, host=attribution.host, num_times=attribution.num_times, why=attribution.text)
