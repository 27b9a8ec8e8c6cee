"""The alerts, recording rules and runbooks as they are committed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import yaml

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
ALERTS = DASHBOARDS / "alerts"
RUNBOOKS = DASHBOARDS / "runbooks"
RULE_FILES = ("training.yml", "rollback.yml", "caboose.yml", "recording.yml")


@dataclass(frozen=True)
class Rule:
    """One rule of Prometheus', with the file it stands in."""

    file: str
    fields: dict[str, Any]

    @property
    def name(self) -> str:
        """Of the alert, or of the series it records."""
        return str(self.fields.get("alert") or self.fields["record"])

    @property
    def is_alert(self) -> bool:
        """Whether it tells somebody."""
        return "alert" in self.fields

    @property
    def severity(self) -> str:
        """Of an alert."""
        return str(self.fields["labels"]["severity"])

    def __str__(self) -> str:
        return f"{self.name} {self.severity}" if self.is_alert else self.name


def rules() -> list[Rule]:
    """All of them, in the order of the files."""
    found = []
    for file in RULE_FILES:
        groups = yaml.safe_load((ALERTS / file).read_text(encoding="utf-8"))["groups"]
        found += [Rule(file, fields) for group in groups for fields in group["rules"]]
    return found


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """Every selector in an expression, wherever it stands."""
    found: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(expression), found.append)
    return [part for part in found if isinstance(part, promql_parser.VectorSelector)]
