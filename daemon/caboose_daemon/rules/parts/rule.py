"""The base of rules: a class that reads a read-only view of a job and returns a finding or None.

Design
------
A rule has no side effects. It gets a `JobView` after every aligned step (with `trigger = "tick"`, about once a second)
and returns a Finding or None. It may keep a little state, constant in size, because the view holds one step and not the
history. There is one instance per job and attempt, so a restarted job starts with new baselines. While a condition
lasts, the rule returns a finding at every call with the same `onset_step`; episodes are made of them elsewhere.

`needs` names what must be visible; without it the rule abstains, and the job's page shows that. In the regimes of
`muted_in` (see `regimes`) the rule is not called. When one of `forgets_after` begins, the rule is replaced by a new
instance, and its open episode ends.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Literal, TypeVar

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.steps.view import JobView

Trigger = Literal["step", "tick"]


@dataclass(frozen=True)
class RuleConfig:
    """The keys that every rule has under `[rules.<name>]`."""

    enabled: bool = True
    """Whether the rule runs at all."""
    severity: Literal["info", "warning", "critical"] = "critical"
    """Highest severity that this rule may report; lower it so that the rule cannot page."""

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
    assumes_falling_loss: ClassVar[bool] = False
    """Whether it means nothing where no loss is meant to fall: reinforcement learning, adversaries."""
    judges_parts: ClassVar[bool] = False
    """Whether each part of a job with several models is judged by itself: it reads no more than loss, norms, layers and
    learning rates."""
    muted_in: ClassVar[frozenset[str]] = frozenset()
    forgets_after: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: C) -> None:
        self.config = config

    @abstractmethod
    def observe(self, view: JobView) -> Finding | None:
        """This rule's verdict on the view."""

    @abstractmethod
    def resume(self, finding: Finding) -> None:
        """Continues, in a restarted daemon, the open episode whose last finding this is, so that it can end."""

    def capped(self, severity: Severity) -> Severity:
        """The severity, at most the configured one."""
        ceiling = Severity(self.config.severity)
        return severity if severity.rank <= ceiling.rank else ceiling


AnyRule = Rule[Any]
