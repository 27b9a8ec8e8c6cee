"""What rules share that follow one lasting condition: its onset, its findings, its end.

Design
------
Most rules see one condition begin, last and end. The base keeps the last finding and nothing else: it fixes the onset
for as long as the condition lasts, says once that it ended, and takes an episode up again after a restart.
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
        """Whether the condition was there when it was last looked for."""
        return self._last is not None

    def resume(self, finding: Finding) -> None:
        """The condition goes on, or ends, from where it was."""
        self._last = finding

    def _found(
        self, severity: Severity, step: int, summary: str, *, onset: int | None = None, **details: Any
    ) -> Finding:
        """A finding; `onset` counts only for the first one of a condition."""
        begun = step if onset is None else onset
        self._last = Finding(
            rule=self.name,
            severity=self.capped(severity),
            step=step,
            onset_step=begun if self._last is None else self._last.onset_step,
            summary=summary,
            **details,
        )
        return self._last

    def _resolved(self, step: int, summary: str) -> Finding | None:
        """The end of what was open; None if nothing was."""
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
