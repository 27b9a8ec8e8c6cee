"""A run that a daemon knows, asked for over its API."""

from caboose_daemon.offline.runs.of_job import run_of_job
from caboose_daemon.offline.runs.rebuilding import rebuilt
from caboose_daemon.offline.runs.run import Json, Run, RunError
from caboose_daemon.out.api.client import Client, ClientError, job_path

POINTS = 5000


def known_jobs(client: Client) -> list[str]:
    """The jobs the daemon knows; RunError where nobody answers."""
    return [str(row["job"]) for row in _get(client, "/api/v1/jobs")["jobs"]]


def from_daemon(client: Client, job: str, *, points: int = POINTS) -> Run:
    """The job as the daemon now knows it; its curves in at most `points` rows."""
    path = job_path(job)
    incidents = _get(client, f"{path}/incidents")["incidents"]
    return run_of_job(
        _get(client, path),
        _get(client, f"{path}/series?points={points}")["steps"],
        name=job,
        source="daemon",
        where=client.url,
        found=tuple(rebuilt(job, incidents, _get(client, f"{path}/findings")["findings"])),
        incidents=tuple(sorted(incidents, key=lambda incident: incident["number"])),
        decisions=tuple(reversed(_get(client, f"{path}/decisions")["decisions"])),
        ledger=tuple(_get(client, f"{path}/ledger")["entries"]),
        latest_sample=_get(client, f"{path}/sample")["sample"],
    )


def _get(client: Client, path: str) -> Json:
    try:
        answer: Json = client.get(path)
    except ClientError as error:
        raise RunError(str(error)) from None
    return answer
