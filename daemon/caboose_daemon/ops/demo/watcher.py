"""What the demo knows of its run, asked from the daemon's API as any client would."""

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from caboose_daemon.format import to_float


@dataclass
class Watcher:
    """The run as of the last `look`."""

    url: str
    job: str
    detail: dict[str, Any] = field(default_factory=dict)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """Newest first."""

    @property
    def is_known(self) -> bool:
        """Whether the daemon has heard of the job."""
        return bool(self.detail)

    def look(self) -> None:
        """Asks the daemon; keeps what it knew if it does not answer in time."""
        path = f"/api/v1/jobs/{urllib.parse.quote(self.job)}"
        try:
            self.detail = self._get(path)
            self.incidents = self._get(f"{path}/incidents")["incidents"]
            self.decisions = self._get(f"{path}/decisions")["decisions"]
            self.steps = self._get(f"{path}/series?points=2000")["steps"]
        except (urllib.error.URLError, TimeoutError, ConnectionError, json.JSONDecodeError):
            return

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=2) as answer:  # noqa: S310 - our own daemon
            return json.load(answer)

    def curve(self, name: str) -> list[float]:
        """One column of the steps; what is not taken on every step stands until it is taken again."""
        values: list[float] = []
        for step in self.steps:
            value = step.get(name)
            values.append(values[-1] if value is None and values else to_float(value))
        return values
