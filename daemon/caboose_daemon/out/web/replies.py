"""The replies that the API's endpoints share: errors, one job's answer, and a job that does not exist."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.state import State
from caboose_daemon.out.api.json_shapes import Json

MAX_JOBS = 20
"""Job names in an error."""
MAX_NAME = 128
"""Characters of an error that repeats a name."""


def error(status: int, text: str, **fields: str) -> JSONResponse:
    """An error as the API gives it; `fields` are for programs, which do not read the text."""
    return JSONResponse({"error": text, **fields}, status_code=status)


def unknown_job(state: State, name: str) -> JSONResponse | None:
    """404 with the names of the jobs there are; None for a job that exists."""
    with state.lock:
        if name in state.jobs:
            return None
        known = sorted(state.jobs)[:MAX_JOBS]
    text = f"no job {name[:MAX_NAME]!r}; known: {', '.join(known) or 'none yet'}"
    return JSONResponse({"error": text, "known_jobs": known}, status_code=404)


def job_reply(state: State, request: Request, shape: Callable[[Job], Json | Response]) -> Response:
    """What `shape` makes of the job in the path, called with the state's lock held; 404 where there is none."""
    name = request.path_params["job"]
    with state.lock:
        unknown = unknown_job(state, name)
        if unknown is not None:
            return unknown
        answer = shape(state.jobs[name])
    return answer if isinstance(answer, Response) else JSONResponse(answer)
