"""The description of a rule: the one source of `caboose rules`, of the API's list and of the tables in docs/rules.md.

Design
------
Everything is read from the rule's own file. Its module docstring opens with `name: what it sees.`. Sections with
underlined headings follow: why the method is right, and which healthy runs it is silent on. A threshold's meaning is
the docstring under its field. Python keeps no docstrings of fields, so they are read from the source text; an
installation without sources lacks the texts and nothing else.
"""

import ast
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from caboose_daemon.rules.parts.rule import AnyRule, RuleConfig, Trigger

RUNBOOKS = "docs/rules.md"
"""Has one section per rule: what it means, and what to do."""
HEADING = re.compile(r"^(?P<title>\S.*)\n-{3,}\n", flags=re.MULTILINE)


def alert_name(rule: str) -> str:
    """The rule's name as an alert, and as a runbook: loss_spike is CabooseLossSpike."""
    return "Caboose" + "".join(word.capitalize() for word in rule.split("_"))


@dataclass(frozen=True)
class Threshold:
    """One key under `[rules.<name>]`."""

    key: str
    default: Any
    doc: str
    is_own: bool
    """Whether it is specific to this rule; `enabled` and `severity` are not, unless their default differs here."""


@dataclass(frozen=True)
class Description:
    """What a rule's file says about it."""

    name: str
    brief: str
    """A few words, for a table."""
    sees: str
    """A sentence."""
    sections: tuple[tuple[str, str], ...]
    """Title and text of each section of the module docstring."""
    thresholds: tuple[Threshold, ...]
    trigger: Trigger
    needs: tuple[str, ...]
    muted_in: tuple[str, ...]
    forgets_after: tuple[str, ...]

    @property
    def runbook(self) -> str:
        return f"{RUNBOOKS}#{self.name}"


@cache
def describe(rule: type[AnyRule]) -> Description:
    opening, sections = _parts(ast.get_docstring(_source(rule.__module__)) or "")
    brief = _joined((inspect.getdoc(rule) or "").partition("\n\n")[0])
    return Description(
        name=rule.name,
        brief=brief.rstrip("."),
        sees=opening.removeprefix(f"{rule.name}: ") or brief,
        sections=sections,
        thresholds=tuple(_thresholds(rule.config_class)),
        trigger=rule.trigger,
        needs=tuple(sorted(rule.needs)),
        muted_in=tuple(sorted(rule.muted_in)),
        forgets_after=tuple(sorted(rule.forgets_after)),
    )


def _thresholds(cls: type[RuleConfig]) -> Iterator[Threshold]:
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs.update(field_docs(base))
    common, defaults = RuleConfig(), cls()
    for field in fields(cls):
        default = getattr(defaults, field.name)
        is_own = not hasattr(common, field.name) or getattr(common, field.name) != default
        yield Threshold(field.name, default, docs.get(field.name, ""), is_own)


def field_docs(cls: type) -> dict[str, str]:
    """The docstrings under a class's fields."""
    for node in ast.walk(_source(cls.__module__)):
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            return dict(_documented(node.body))
    return {}


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, following in itertools.pairwise(body):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, _joined(text)


@cache
def _source(module: str) -> ast.Module:
    try:
        return ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return ast.Module(body=[], type_ignores=[])


def _parts(docstring: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The opening as one line, and the sections; prose before the first heading has the title ""."""
    opening, *rest = HEADING.split(docstring)
    first, _, prose = opening.partition("\n\n")
    sections = [("", prose.strip())] if prose.strip() else []
    sections += [(title, text.strip()) for title, text in zip(rest[::2], rest[1::2], strict=True)]
    return _joined(first), tuple(sections)


def _joined(text: str) -> str:
    return " ".join(text.split())
