"""A diagnosis: causes in order, each with its evidence and what to do, and what remains unknown."""

import msgspec


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about a cause."""

    first_fix: str
    """The one thing to try first."""
    code: str = ""
    """The line to change in the user's script; empty where no single line does it."""
    avoid: str = ""
    """What not to do, though it seems natural."""
    verify: str = ""
    """How to check whether it helped."""


class RankedCause(msgspec.Struct, frozen=True, kw_only=True):
    """One possible cause with the evidence for and against it."""

    id: str
    title: str
    confidence: float
    """Share of the belief, 0 to 1."""
    evidence_for: tuple[str, ...] = ()
    evidence_against: tuple[str, ...] = ()
    advice: Advice


class Refusal(msgspec.Struct, frozen=True):
    """A common remedy, and why the evidence does not support it here."""

    advice: str
    why: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The causes of an incident, the most likely first; their confidences and `unknown` add up to 1."""

    step: int
    """The last step that it is based on."""
    causes: tuple[RankedCause, ...] = ()
    unknown: float = 1.0
    refusals: tuple[Refusal, ...] = ()
    missing: tuple[str, ...] = ()
    """What further evidence would have helped, and how to get it next time."""
    hunts: tuple[str, ...] = ()
    """What running the batch again has shown: one line per rank that found something."""
    numbers: tuple[str, ...] = ()
    """The numbers of the last steps beside what is usual for them."""

    @property
    def best(self) -> RankedCause | None:
        """The most likely cause; None where `unknown` has more of the belief."""
        first = self.causes[0] if self.causes else None
        return first if first is not None and first.confidence >= self.unknown else None
