"""The thresholds in use: the defaults, overridden by the file, overridden by what was posted.

Design
------
A change is checked as a whole, by the code that checks the file at the start, before any of it is applied. Then every
job's rules get it on the loop's thread, between two steps, so that no step is judged by half of it. What the rules
have learned stays. What was posted overrides the file, also when the file is read again, until the daemon ends. Posting
null removes it.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal

from caboose_daemon.config import Config, ConfigError, Tables, build_rules, check_rule_keys
from caboose_daemon.jobs.pipeline import Change, Pipeline
from caboose_daemon.jobs.state import State
from caboose_daemon.rules.parts.rule import RuleConfig

logger = logging.getLogger("caboose.daemon")

Origin = Literal["default", "file", "posted"]
POSTED = "posted"


def origins(config: RuleConfig, file: Mapping[str, Any], posted: Mapping[str, Any] = {}) -> dict[str, Origin]:
    """Where each of a rule's thresholds was set last."""
    return {key: "posted" if key in posted else "file" if key in file else "default" for key in vars(config)}


class Thresholds:
    """Changes the thresholds, and knows where each comes from."""

    def __init__(self, config: Config, state: State, pipeline: Pipeline, clock: Callable[[], float]) -> None:
        self._state = state
        self._pipeline = pipeline
        self._clock = clock
        self._file: Tables = config.rule_tables
        self._posted: Tables = {}
        self.file = config.file

    @property
    def in_force(self) -> Mapping[str, RuleConfig]:
        """The thresholds of every rule, by its name."""
        return self._state.rule_configs

    def origins(self, rule: str) -> dict[str, Origin]:
        """Where each of a rule's thresholds was set."""
        return origins(self.in_force[rule], self._file.get(rule, {}), self._posted.get(rule, {}))

    def replace_file(self, config: Config) -> list[str]:
        """Applies the file as it is now; returns what changed."""
        with self._state.lock:
            changes, change = self.replacing_file(config)
            change.apply()
        return changes

    def replacing_file(self, config: Config) -> tuple[list[str], Change]:
        """What changes with the file as it is now, and the change that applies it."""
        source = f"{config.file} with what was posted" if self._posted else config.file
        rules = build_rules(source, config.rule_tables, self._posted)
        changes = list(_changes(self.in_force, rules))

        def apply() -> None:
            self._pipeline.configure(rules, self._clock())
            self._file, self.file = config.rule_tables, config.file
            logger.info("%s read again: %s", config.file or "defaults", "; ".join(changes) or "no threshold changed")

        return changes, Change(record=lambda sink: None, apply=apply)

    def post(self, body: Any) -> list[str]:
        """Applies {"rules": {name: {key: value}}}; returns what changed."""
        with self._state.lock:
            changes, change = self.posting(body)
            change.apply()
        return changes

    def posting(self, body: Any) -> tuple[list[str], Change]:
        """What changes with {"rules": {name: {key: value}}}, and the change that applies it; ConfigError."""
        if not isinstance(body, dict) or set(body) != {"rules"}:
            raise ConfigError(f'{POSTED}: expected {{"rules": {{...}}}}; anything else needs a restart')
        table = body["rules"]
        check_rule_keys(POSTED, table)
        posted = {name: dict(section) for name, section in self._posted.items()}
        for name, section in table.items():
            laid = {**posted.pop(name, {}), **section}
            left = {key: value for key, value in laid.items() if value is not None}
            if left:
                posted[name] = left
        rules = build_rules(POSTED, self._file, posted)
        changes = list(_changes(self.in_force, rules))

        def apply() -> None:
            self._pipeline.configure(rules, self._clock())
            self._posted = posted
            logger.info("%s, until the daemon restarts: %s", POSTED, "; ".join(changes) or "no threshold changed")

        return changes, Change(record=lambda sink: None, apply=apply)


def _changes(before: Mapping[str, RuleConfig], after: Mapping[str, RuleConfig]) -> list[str]:
    return [
        f"rules.{name}.{field.name} = {getattr(after[name], field.name)!r} (was {getattr(before[name], field.name)!r})"
        for name in after
        for field in fields(after[name])
        if getattr(before[name], field.name) != getattr(after[name], field.name)
    ]
