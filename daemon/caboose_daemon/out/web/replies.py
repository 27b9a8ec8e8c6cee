"""Replies shared by the API's endpoints: errors, one job's answer, unknown job."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.state import State
from caboose_daemon.out.api.json_shapes import Json

MAX_JOBS = 20
"""Maximum job names in an error."""
MAX_NAME = 128
"""Maximum characters of a quoted name."""


def error(status: int, text: str, **fields: str) -> JSONResponse:
    """An error reply; `fields` are for programs, which do not parse the text."""
    return JSONResponse({"error": text, **fields}, status_code=status)


def unknown_job(state: State, name: str) -> JSONResponse | None:
    """404 with the names of known jobs; None if the job exists."""
    with state.lock:
        if name in state.jobs:
            return None
        known = sorted(state.jobs)[:MAX_JOBS]
    text = f"no job {name[:MAX_NAME]!r}; known: {', '.join(known) or 'none yet'}"
    return JSONResponse({"error": text, "known_jobs": known}, status_code=404)


def job_reply(state: State, request: Request, shape: Callable[[Job], Json | Response]) -> Response:
    """The result of `shape` for a copy of the job in the path; 404 for an unknown job."""
    name = request.path_params["job"]
    job = state.copy_of(name)
    if job is None:
        return unknown_job(state, name) or error(404, f"no job {name[:MAX_NAME]!r}")
    answer = shape(job)
    return answer if isinstance(answer, Response) else JSONResponse(answer)
