"""What the test of a hypothesis gives: a verdict, its evidence, what to do, what not to do.

Design
------
A test never guesses. `supported` and `refuted` need numbers of the run; without them the verdict is `undecided`, and
`missing` names what would decide it and how to get it. The five hypotheses do not exclude each other, so they have
verdicts and no shares of one hundred per cent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from caboose_daemon.offline.hypotheses.window import Window

Verdict = Literal["supported", "refuted", "undecided"]
VERDICTS: dict[Verdict, str] = {
    "supported": "supported",
    "refuted": "refuted",
    "undecided": "cannot be decided",
}


@dataclass(frozen=True)
class Result:
    """The verdict of one test."""

    verdict: Verdict
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """What would decide it; only where it is undecided."""


@dataclass(frozen=True)
class Hypothesis:
    """One explanation, and its test."""

    id: str
    title: str
    asks: str
    """What the test measures."""
    test: Callable[[Window], Result]
    do: str
    """If it is supported."""
    do_not: str
    line: str = ""
    """A line of code that does it."""


@dataclass(frozen=True)
class Tested:
    """A hypothesis with its result."""

    hypothesis: Hypothesis
    result: Result

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        is_supported = self.result.verdict == "supported"
        return {
            "id": self.hypothesis.id,
            "title": self.hypothesis.title,
            "test": self.hypothesis.asks,
            "verdict": self.result.verdict,
            "evidence": list(self.result.evidence),
            "missing": list(self.result.missing),
            "do": self.hypothesis.do if is_supported else "",
            "code": self.hypothesis.line if is_supported else "",
            "do_not": self.hypothesis.do_not if is_supported else "",
        }
