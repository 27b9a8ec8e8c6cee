"""Base of rules with one lasting condition: keeps its onset, its last finding and its end.

Design
------
Most rules see one condition begin, last and end. The base keeps the last finding and nothing else: it fixes the onset
while the condition lasts, reports its end once, and continues an episode after a restart of the daemon.
"""

from typing import Any, TypeVar

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig

C = TypeVar("C", bound=RuleConfig)
NUM_NAMED = 3


class LastingRule(Rule[C]):
    """A rule with at most one condition open."""

    def __init__(self, config: C) -> None:
        super().__init__(config)
        self._last: Finding | None = None

    @property
    def is_open(self) -> bool:
        """Whether the condition held when it was last judged."""
        return self._last is not None

    def resume(self, finding: Finding) -> None:
        """Continues the condition of the last finding."""
        self._last = finding

    def _since(self, step: int, onset: int | None = None) -> str:
        """The first step of the condition as text, for a summary; the arguments are those of `_found`."""
        first = step if onset is None else onset
        return f"since step {first if self._last is None else self._last.onset_step:,}"

    def _found(
        self, severity: Severity, step: int, summary: str, *, onset: int | None = None, **details: Any
    ) -> Finding:
        """A finding; `onset` is used only for the first one of a condition."""
        first = step if onset is None else onset
        self._last = Finding(
            rule=self.name,
            severity=self.capped(severity),
            step=step,
            onset_step=first if self._last is None else self._last.onset_step,
            summary=summary,
            **details,
        )
        return self._last

    def _resolved(self, step: int, summary: str) -> Finding | None:
        """The end of the open condition; None if none was open."""
        last, self._last = self._last, None
        if last is None:
            return None
        return Finding(
            rule=self.name,
            severity=Severity.INFO,
            step=step,
            onset_step=last.onset_step,
            summary=summary,
            ranks=last.ranks,
            layers=last.layers,
            phase=last.phase,
            state="resolved",
        )


def named(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    return ", ".join(names[:NUM_NAMED]) + more


def and_more(num: int, what: str) -> str:
    """How many there are beside the first, such as " and 2 more ranks"; empty for one."""
    return "" if num < 2 else f" and {num - 1} more {what}{'s' if num > 2 else ''}"
