"""Keeps the verdict on a change with the job: `caboose try --job` and `caboose verify --keep`."""

from typing import Any

from caboose_daemon.cli.options import EXIT_FAILED, connect, fail, one_line_errors, read_token, user_name
from caboose_daemon.offline.trying.knowledge import likeliest
from caboose_daemon.out.api.client import job_path

Json = dict[str, Any]
MAX_TEXT = 400


def keep(
    kind: str,
    job: str,
    fields: dict[str, str],
    *,
    incident: str | None,
    address: str | None,
    token_file: str | None,
) -> Json:
    """Declares the event, with the incident's rule and likeliest cause; without a name, of the newest incident."""
    client = connect(address)
    with one_line_errors():
        rows: list[Json] = client.get(job_path(job, "/incidents"))["incidents"]
    if incident is not None and incident not in [row["id"] for row in rows]:
        fail(f"no incident {incident}; {job} has {', '.join(row['id'] for row in rows[:20]) or 'none'}")
    about = next((row for row in rows if incident in (None, row["id"])), None)
    known = {} if about is None else {"incident": about["id"], "rule": about["rule"], "cause": likeliest(about)}
    given = {name: text[:MAX_TEXT] for name, text in {**fields, **known, "by": user_name()}.items()}
    with one_line_errors():
        path, token = job_path(job, "/events"), read_token(token_file, client.url)
        status, answer = client.post(path, {"kind": kind, "fields": given}, token)
    if status >= 300:
        fail(str(answer.get("error", f"the daemon answered {status}")), EXIT_FAILED)
    event: Json = answer
    return event
