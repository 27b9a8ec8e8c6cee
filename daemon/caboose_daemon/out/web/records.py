"""The JSON API for commands: single steps, declared events, and the daemon's own status."""

import shutil
from typing import Annotated

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.api.steps_around import MAX_STEPS
from caboose_daemon.out.web.context import Context
from caboose_daemon.out.web.replies import error, unknown_job
from caboose_daemon.rollback.modes import effective, owners_mode
from caboose_daemon.rollback.target import expected_steps_lost, pace
from caboose_daemon.version import __version__

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class StepsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of GET /api/v1/jobs/{job}/steps."""

    attempt: Whole
    step: Whole
    before: Whole = 500
    after: Whole = 500


class RecordsApi:
    """The endpoints; read-only."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route("/api/v1/jobs/{job}/steps", self.steps),
            Route("/api/v1/jobs/{job}/events", self.events, methods=["GET"]),
            Route("/api/v1/daemon", self.daemon),
        ]

    async def steps(self, request: Request) -> Response:
        """The steps of one job around (attempt, step)."""
        try:
            moment = msgspec.convert(dict(request.query_params), StepsQuery, strict=False)
        except msgspec.ValidationError as problem:
            return error(400, f"expected ?attempt=A&step=S&before=N&after=N, N at most {MAX_STEPS}: {problem}"[:500])
        name = request.path_params["job"]
        unknown = unknown_job(self._context.state, name)
        if unknown is not None:
            return unknown
        rows = await run_in_threadpool(
            self._context.steps, name, moment.attempt, moment.step, moment.before, moment.after
        )
        return JSONResponse(rows)

    async def events(self, request: Request) -> Response:
        """One job's declared events, except validations, oldest first."""
        name = request.path_params["job"]
        unknown = unknown_job(self._context.state, name)
        if unknown is not None:
            return unknown
        return JSONResponse({"job": name, "events": await run_in_threadpool(self._context.declared, name)})

    async def daemon(self, request: Request) -> Response:
        """Version, clock, journal, last scrape, refused messages, and the rollback mode of each job."""
        return JSONResponse(await run_in_threadpool(self._about))

    def _about(self) -> json_shapes.Json:
        context, state = self._context, self._context.state
        now, mode = context.clock(), context.rollback.mode
        with state.lock:
            num_refused = dict(state.num_refused)
            num_errors = {f"{stage}: {kind}": count for (stage, kind), count in state.num_errors.items()}
            quarantined = [job.name for job in state.jobs.values() if job.faults.is_quarantined]
        return {
            "version": __version__,
            "time": now,
            "started": state.started,
            "num_peers": state.num_peers,
            "num_refused": num_refused,
            "num_errors": num_errors,
            "quarantined": quarantined,
            "problems": context.problems(),
            "journal": {
                "bytes": state.journal_bytes,
                "error": state.journal_error,
                "num_lost": state.journal_lost,
                "num_refused": state.journal_refused,
                "num_quarantined": state.journal_quarantined,
                "set_aside": state.journal_set_aside,
                "damage": state.journal_damage,
                "free_bytes": _free_bytes(context),
            },
            "scrape": None
            if state.last_scrape is None
            else {"seconds": round(max(0.0, now - state.last_scrape), 3), "by": state.scraper},
            "rollback": {"mode": mode, "is_signed": context.is_signed},
            "jobs": [
                {
                    "job": job.name,
                    "state": job.state,
                    "owner_mode": owners_mode(job),
                    "mode": effective(mode, job),
                    "expected_steps_lost": expected_steps_lost(
                        job.rollback.holdings, pace(job.recent), job.lag_seconds, context.rollback.margin_steps
                    ),
                    "agent_versions": sorted(
                        {m.hello.agent_version for m in (job.attempt.members.values() if job.attempt else ())}
                    )[:20],
                }
                for job in state.copies()
            ],
        }


def _free_bytes(context: Context) -> int | None:
    try:
        return shutil.disk_usage(context.history.path.parent).free
    except OSError:
        return None
