"""The configuration as TOML: every key with its meaning, for the example file, `caboose config` and the docs."""

import json
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from caboose_daemon.config import SECTIONS, Config
from caboose_daemon.rules import RULES
from caboose_daemon.rules.parts.describe import describe, field_docs

HEAD = """\
# Every key of caboose.toml with its default value and its meaning. Used unchanged, this file has no effect.
# Generated from the code by `make deploy`. The daemon refuses unknown keys, so a misspelt key is an error.
"""
Key = tuple[str, str]
"""Section and name."""


def reference() -> str:
    """The complete default configuration, explained."""
    lines = [HEAD]
    config = Config()
    for name in SECTIONS:
        section = getattr(config, name)
        about = str(type(section).__doc__).partition(": ")[2] or str(type(section).__doc__)
        lines += [f"# {about[:1].upper()}{about[1:]}", f"[{name}]"]
        docs = field_docs(type(section))
        for field in fields(section):
            lines += [*comment(docs[field.name]), f"{field.name} = {toml(getattr(section, field.name))}"]
        lines.append("")
    for rule in map(describe, RULES):
        lines += [*comment(f"{rule.name}: {rule.sees}"), f"[rules.{rule.name}]"]
        for threshold in rule.thresholds:
            lines += [*comment(threshold.doc), f"{threshold.key} = {toml(threshold.default)}"]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def values(config: Config) -> dict[Key, Any]:
    """Every key of a configuration, in the order of the reference."""
    found = {(s, f.name): getattr(getattr(config, s), f.name) for s in SECTIONS for f in fields(getattr(config, s))}
    return found | {
        (f"rules.{name}", key): value for name, rule in config.rules.items() for key, value in vars(rule).items()
    }


def as_toml(config: Config, origin: Callable[[Key], str], *, only_changed: bool) -> str:
    """A configuration as a file, with the origin of each value that is not the default."""
    lines: list[str] = []
    section = ""
    for key, value in values(config).items():
        where = origin(key)
        if only_changed and where == "default":
            continue
        if key[0] != section:
            section = key[0]
            lines += ["", f"[{section}]"]
        lines.append(f"{key[1]} = {toml(value)}" + (f"  # {where}" if where != "default" else ""))
    return "\n".join(lines).strip("\n") + "\n" if lines else "# every value is the default\n"


def comment(text: str) -> Iterator[str]:
    """Text as comment lines."""
    return (f"# {line}" for line in textwrap.wrap(text, 116))


def toml(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return repr(value)
