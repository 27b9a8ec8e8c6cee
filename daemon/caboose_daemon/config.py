"""caboose.toml: what may be in it, and one clear line about anything that may not.

Design
------
Sections are frozen dataclasses; their fields, types and docstrings are the whole specification. Loading is strict:
an unknown key, a wrong type or a value out of range ends the start with one line that names file, key and value, and
for an unknown key the nearest valid one. Flags and environment variables are merged in by the command line.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from caboose_daemon.rules import RULES
from caboose_daemon.rules.rule import RuleConfig
from caboose_wire.endpoints import DEFAULT_ENDPOINT, DEFAULT_HTTP, split_http, split_tcp

S = TypeVar("S")


class ConfigError(ValueError):
    """The configuration cannot be right; the message is one line for the user."""


@dataclass(frozen=True)
class DaemonConfig:
    """`[daemon]`: where it listens and keeps its things."""

    listen: str = DEFAULT_ENDPOINT
    """Where agents report to, tcp://host:port; port 0 takes a free one."""
    http: str = DEFAULT_HTTP
    """Where the page, the API and /metrics are, host:port; port 0 takes a free one."""
    data_dir: str = "caboose-data"
    """Holds the journal and the token; made if it is not there."""
    keys: str = ""
    """Directory made by `caboose keys new`; with it, only agents that hold a key are heard."""
    token_file: str = ""
    """Holds the token that HTTP writes need. Empty: one is made in data_dir, for this machine's own use."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names under which HTTP may be addressed, beside the bound one and this machine's."""
    insecure: bool = False
    """Allow addresses off this machine without keys or token. Only on a network you trust."""

    def __post_init__(self) -> None:
        for name, check in (("listen", split_tcp), ("http", split_http)):
            try:
                check(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name} = {getattr(self, name)!r}: {error}") from None


@dataclass(frozen=True)
class JournalConfig:
    """`[journal]`: how much is kept."""

    max_steps: int = 2_000_000
    """Steps kept per job; the oldest go first. A million take about 100 MB."""
    retention_days: float = 90.0
    """Days after which steps, events and closed episodes are deleted."""

    def __post_init__(self) -> None:
        _must_be_positive(self, "max_steps", "retention_days")


@dataclass(frozen=True)
class AlignmentConfig:
    """`[alignment]`: how long a step waits for its slowest rank."""

    min_deadline_seconds: float = 2.0
    """A step never waits less than this."""
    deadline_steps: float = 3.0
    """...nor less than this many median step times."""

    def __post_init__(self) -> None:
        _must_be_positive(self, "min_deadline_seconds", "deadline_steps")


def _default_rules() -> Mapping[str, RuleConfig]:
    return MappingProxyType({rule.name: rule.config_class() for rule in RULES})


@dataclass(frozen=True)
class Config:
    """The whole of caboose.toml."""

    daemon: DaemonConfig = field(default_factory=DaemonConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    alignment: AlignmentConfig = field(default_factory=AlignmentConfig)
    rules: Mapping[str, RuleConfig] = field(default_factory=_default_rules)


def load(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Config:
    """The file's configuration (or the defaults) with `overrides` laid over its `[daemon]` section."""
    table: dict[str, Any] = {}
    name = str(path) if path is not None else "command line"
    if path is not None:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from None
    rules = table.pop("rules", {})
    _check_keys(name, "", table, [f.name for f in fields(Config)])
    sections = {
        f.name: _section(name, f.name, f.default_factory, table.get(f.name, {}))
        for f in fields(Config)
        if f.name != "rules" and f.default_factory is not MISSING
    }
    if overrides:
        base = {f.name: getattr(sections["daemon"], f.name) for f in fields(DaemonConfig)}
        sections["daemon"] = _build("command line", "daemon", DaemonConfig, {**base, **overrides})
    return Config(**sections, rules=_rules(name, rules))


def _rules(file: str, table: Any) -> Mapping[str, RuleConfig]:
    classes = {rule.name: rule.config_class for rule in RULES}
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: rules = {table!r}: expected a section [rules.<name>] for each rule")
    _check_keys(file, "rules.", table, list(classes))
    return MappingProxyType(
        {name: _section(file, f"rules.{name}", cls, table.get(name, {})) for name, cls in classes.items()}
    )


def _section(file: str, prefix: str, cls: Any, table: Any) -> Any:
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: {prefix} = {table!r}: expected a section [{prefix}]")
    _check_keys(file, f"{prefix}.", table, [f.name for f in fields(cls)])
    return _build(file, prefix, cls, table)


def _build(file: str, prefix: str, cls: type[S], table: Mapping[str, Any]) -> S:
    hints = get_type_hints(cls)
    values = {key: _typed(f"{file}: {prefix}.{key}", hints[key], value) for key, value in table.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(f"{file}: {prefix}.{error}") from None


def _typed(where: str, hint: Any, value: Any) -> Any:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{where} = {value!r}: use one of {', '.join(map(repr, get_args(hint)))}")
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{where} = {value!r}: expected a list of strings")
        return tuple(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise ConfigError(
            f"{where} = {value!r}: expected {_NAMES[hint]}, got {_NAMES.get(type(value), 'something else')}"
        )
    return value


_NAMES = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a section",
}


def _check_keys(file: str, prefix: str, table: Mapping[str, Any], valid: list[str]) -> None:
    for key, value in table.items():
        if key not in valid:
            near = difflib.get_close_matches(key, valid, n=1, cutoff=0.4)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"valid here: {', '.join(sorted(valid))}"
            shown = "" if isinstance(value, dict) else f" = {value!r}"
            raise ConfigError(f"{file}: {prefix}{key}{shown}: unknown key; {hint}")


def _must_be_positive(section: Any, *names: str) -> None:
    for name in names:
        if not getattr(section, name) > 0:
            raise ValueError(f"{name} = {getattr(section, name)!r}: must be above 0")
