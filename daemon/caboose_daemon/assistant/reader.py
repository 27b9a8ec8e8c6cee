"""What every tool asks: the daemon, over its API, with one line for what goes wrong."""

from typing import Any

from caboose_daemon.assistant.untrusted import clean
from caboose_daemon.out.api.client import Client, ClientError, job_path

Json = dict[str, Any]
MAX_ERROR = 400


class AskError(ValueError):
    """The question has no answer; the message says why, and what to ask instead."""


class DaemonError(AskError):
    """The daemon's own words, which may quote the job."""


class Reader:
    """Reads the daemon; AskError for everything that goes wrong."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.url = client.url

    def get(self, path: str) -> Json:
        try:
            answer: Json = self._client.get(path)
        except ClientError as error:
            raise DaemonError(clean(error, MAX_ERROR)) from None
        return answer

    def of_job(self, job: str, tail: str = "") -> Json:
        """An endpoint of one job."""
        return self.get(job_path(job, tail))

    def incident(self, job: str, number: int) -> Json:
        """One incident of a job."""
        rows: list[Json] = self.of_job(job, "/incidents")["incidents"]
        found = next((row for row in rows if row["number"] == number), None)
        if found is None:
            known = ", ".join(str(row["number"]) for row in rows[:20]) or "none"
            raise AskError(f"no incident {number} of this job; its incidents: {known}")
        return found
