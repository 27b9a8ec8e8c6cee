"""The addresses that people follow from an alert: the live page, the runbook, Grafana."""

from dataclasses import dataclass
from urllib.parse import quote

from caboose_daemon.jobs.state import State

RUN_DASHBOARD = "caboose-run"
"""The uid of the dashboard of one run."""


@dataclass(frozen=True)
class Links:
    """Addresses below the daemon's own, and below Grafana's where one is configured."""

    page: str
    """Of the live page, with a slash at its end; empty where the daemon serves none."""
    grafana: str = ""

    @classmethod
    def of(cls, state: State) -> "Links":
        return cls(state.url, state.grafana_url.rstrip("/"))

    def of_incident(self, job: str, number: int) -> str:
        """The live page of the job, opened at the incident."""
        return f"{self.page}?job={_quoted(job)}#incident={number}"

    def of_runbook(self, alert: str, job: str, number: int) -> str:
        """The runbook of the alert, filled with what is known of the incident."""
        return f"{self.page}runbooks/{alert}?job={_quoted(job)}&incident={number}"

    def of_dashboard(self, job: str) -> str:
        """The run's dashboard; empty without a Grafana."""
        return f"{self.grafana}/d/{RUN_DASHBOARD}?var-job={_quoted(job)}" if self.grafana else ""


def _quoted(text: str) -> str:
    return quote(text, safe="")
