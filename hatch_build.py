"""Puts the dashboards, the alerting rules and their runbooks into the wheel, beside the code that uses them."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIPPED = (("grafana", "*.json"), ("alerts", "*.yml"), ("runbooks", "*.md"))


class Assets(BuildHookInterface):  # type: ignore[type-arg,misc]  # hatchling is there only while it builds
    """Files of `dashboards/` become files of the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling; an editable install finds the files where they are."""
        if version == "editable":
            return
        for folder, pattern in SHIPPED:
            for path in sorted(Path(self.root, "dashboards", folder).glob(pattern)):
                build_data["force_include"][str(path)] = f"caboose_daemon/assets/{folder}/{path.name}"
