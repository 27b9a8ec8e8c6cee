"""What the demo knows of its run, asked from the daemon's API as any client would."""

from dataclasses import dataclass, field
from typing import Any

from caboose_daemon.format import to_float
from caboose_daemon.out.api.client import Client, ClientError, job_path


@dataclass
class Watcher:
    """The run as of the last `look`."""

    client: Client
    job: str
    detail: dict[str, Any] = field(default_factory=dict)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """Newest first."""

    @property
    def page(self) -> str:
        """Where the run's live page is."""
        return f"{self.client.url}/?job={self.job}"

    def look(self) -> None:
        """Asks the daemon; keeps what it knew if it does not answer in time."""
        path = job_path(self.job)
        try:
            self.detail = self.client.get(path)
            self.incidents = self.client.get(f"{path}/incidents")["incidents"]
            self.decisions = self.client.get(f"{path}/decisions")["decisions"]
            self.steps = self.client.get(f"{path}/series?points=2000")["steps"]
        except ClientError:
            return

    def curve(self, name: str) -> list[float]:
        """One column of the steps; a number that is not taken on every step keeps its last value."""
        values: list[float] = []
        for step in self.steps:
            value = step.get(name)
            values.append(values[-1] if value is None and values else to_float(value))
        return values
