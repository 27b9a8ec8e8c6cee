"""What a rule is: a class that looks at a read-only view of a job and says what it finds.

Design
------
A rule has no side effects and asks for nothing: it is handed a `JobView` after every aligned step (or, with
`trigger = "tick"`, about once a second) and returns a Finding or None. It may keep a little state of its own,
constant in size, because the view holds one step and not the history; there is one instance per job and attempt,
so a restart begins with fresh baselines. While a condition lasts the rule returns a finding at every call, with
the same `onset_step`; joining them is not its work.

`needs` names what must be visible; without it the rule abstains, and the job's page says so. In the regimes of
`muted_in` (see `regimes`) it is not asked; when one of `forgets_after` begins, it is made anew, and what it had found
ends there.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Literal, TypeVar

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.steps.view import JobView

Trigger = Literal["step", "tick"]


@dataclass(frozen=True)
class RuleConfig:
    """What every rule has under `[rules.<name>]`."""

    enabled: bool = True
    """Whether the rule is run at all."""
    severity: Literal["info", "warning", "critical"] = "critical"
    """The most urgent this rule may be; lower it to keep a rule from paging."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
                raise ValueError(f"{field.name} = {value!r}: must be above 0")


C = TypeVar("C", bound=RuleConfig)


class Rule(ABC, Generic[C]):
    """Base of every rule; `name` is also its file, its section in caboose.toml and its label."""

    name: ClassVar[str]
    config_class: ClassVar[type[RuleConfig]]
    trigger: ClassVar[Trigger] = "step"
    needs: ClassVar[frozenset[str]] = frozenset()
    muted_in: ClassVar[frozenset[str]] = frozenset()
    forgets_after: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: C) -> None:
        self.config = config

    @abstractmethod
    def observe(self, view: JobView) -> Finding | None:
        """This rule's verdict on the view."""

    @abstractmethod
    def resume(self, finding: Finding) -> None:
        """Takes up, in a restarted daemon, the episode whose last finding this is, so that it can end."""

    def capped(self, severity: Severity) -> Severity:
        """The severity, no higher than the configuration allows."""
        ceiling = Severity(self.config.severity)
        return severity if severity.rank <= ceiling.rank else ceiling


AnyRule = Rule[Any]
