"""What a diagnosis says: causes in order, each with its evidence and what to do, and what remains unknown."""

import msgspec


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about a cause."""

    first_fix: str
    """The one thing to try first."""
    code: str = ""
    """The line to change, as it might stand in the user's script; empty where no line does it."""
    avoid: str = ""
    """What not to do, though it lies near."""
    verify: str = ""
    """How to see whether it helped."""


class RankedCause(msgspec.Struct, frozen=True, kw_only=True):
    """One possible cause with what speaks for and against it."""

    id: str
    title: str
    confidence: float
    """Share of the belief, 0 to 1."""
    evidence_for: tuple[str, ...] = ()
    evidence_against: tuple[str, ...] = ()
    advice: Advice


class Refusal(msgspec.Struct, frozen=True):
    """Something people like to try, and why the evidence does not call for it."""

    advice: str
    why: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The causes of an incident, the most likely first; their confidences and `unknown` add up to 1."""

    step: int
    """Up to which step this was judged."""
    causes: tuple[RankedCause, ...] = ()
    unknown: float = 1.0
    refusals: tuple[Refusal, ...] = ()
    missing: tuple[str, ...] = ()
    """What would have told more, and how to have it next time."""
    hunts: tuple[str, ...] = ()
    """What running the batch again has shown, a line for each rank that found something."""

    @property
    def best(self) -> RankedCause | None:
        """The most likely cause; None where the honest answer is that it is not known."""
        first = self.causes[0] if self.causes else None
        return first if first is not None and first.confidence >= self.unknown else None
