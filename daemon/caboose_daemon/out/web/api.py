"""The JSON API under /api/v1, health and metrics."""

import time
from typing import Annotated

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from caboose_daemon.config import ConfigError
from caboose_daemon.incidents.incident import Acknowledgement
from caboose_daemon.jobs.engine import RuleStats
from caboose_daemon.jobs.job import Job
from caboose_daemon.out.api import json_shapes, rule_shapes
from caboose_daemon.out.web.context import Context
from caboose_daemon.out.web.layers import LayersApi
from caboose_daemon.out.web.records import RecordsApi
from caboose_daemon.out.web.replies import error, job_reply, unknown_job
from caboose_daemon.out.web.rollback import RollbackApi
from caboose_daemon.out.web.series import SeriesApi
from caboose_daemon.out.web.writes import Prepared
from caboose_daemon.rules import RULES
from caboose_daemon.rules.parts.describe import describe
from caboose_daemon.steps.columns import RANK_COLUMNS, STEP_COLUMNS
from caboose_daemon.version import __version__
from caboose_wire import Event
from caboose_wire.fields import Name

MAX_ERROR = 500
"""Maximum characters of an error that quotes the request."""
UNTIL_RESTART = "posted values apply until the daemon restarts; put them into caboose.toml to keep them"
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class EventBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/v1/jobs/{job}/events."""

    kind: str
    fields: dict[Name, float | Integer | str | bool | None] = {}


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/v1/jobs/{job}/incidents/{number}/ack."""

    reason: str = ""
    by: str = ""
    undo: bool = False


class Api:
    """The endpoints. They read copies of the state; writes go through the loop (see `writes`)."""

    def __init__(self, context: Context, registry: CollectorRegistry) -> None:
        self._context = context
        self._registry = registry

    def routes(self) -> list[Route]:
        return [
            Route("/metrics", self.metrics),
            Route("/healthz", self.healthz),
            Route("/readyz", self.readyz),
            Route("/api/v1/jobs", self.jobs),
            *SeriesApi(self._context).routes(),
            Route("/api/v1/jobs/{job}/sample", self.latest_sample),
            Route("/api/v1/jobs/{job}/findings", self.findings),
            Route("/api/v1/jobs/{job}/incidents", self.incidents),
            Route("/api/v1/jobs/{job}/incidents/{number:int}/ack", self.acknowledge, methods=["POST"]),
            Route("/api/v1/jobs/{job}/diagnosis", self.diagnosis),
            Route("/api/v1/jobs/{job}/events", self.declare, methods=["POST"]),
            *RollbackApi(self._context).routes(),
            *RecordsApi(self._context).routes(),
            *LayersApi(self._context).routes(),
            Route("/api/v1/jobs/{job}", self.job),
            Route("/api/v1/columns", self.columns),
            Route("/api/v1/rules", self.rules),
            Route("/api/v1/config", self.config),
            Route("/api/v1/config", self.configure, methods=["POST"]),
        ]

    async def metrics(self, request: Request) -> Response:
        """Prometheus exposition, classic or OpenMetrics by Accept; the next scrape reports the duration of this one."""
        began = time.perf_counter()
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        body = await run_in_threadpool(encoder, self._registry)
        state = self._context.state
        with state.lock:
            state.last_scrape, state.scraper = self._context.clock(), request.headers.get("user-agent", "")[:64]
        return Response(
            body, headers={"content-type": content_type}, background=BackgroundTask(self._answered_scrape, began)
        )

    async def _answered_scrape(self, began: float) -> None:
        with self._context.state.lock:
            self._context.state.scrape_seconds = time.perf_counter() - began

    async def healthz(self, request: Request) -> Response:
        """The process is alive."""
        return JSONResponse({"status": "ok", "version": __version__})

    async def readyz(self, request: Request) -> Response:
        """The daemon receives reports and can write its journal."""
        problems = self._context.problems()
        status = {"status": "not ready" if problems else "ready", "problems": problems}
        return JSONResponse(status, status_code=503 if problems else 200)

    async def jobs(self, request: Request) -> Response:
        """Every job, the most recently seen first."""
        return JSONResponse({"jobs": await run_in_threadpool(self._rows)})

    def _rows(self) -> list[json_shapes.Json]:
        now = self._context.clock()
        jobs = sorted(self._context.state.copies(), key=lambda job: -job.last_seen)
        return [json_shapes.job_row(job, now) for job in jobs]

    async def job(self, request: Request) -> Response:
        """One job with its ranks, settings and unavailable statistics."""
        return job_reply(
            self._context.state,
            request,
            lambda job: json_shapes.job_detail(job, self._context.clock(), self._context.rollback.budget),
        )

    async def findings(self, request: Request) -> Response:
        """The episodes of one job, newest first."""
        return job_reply(
            self._context.state,
            request,
            lambda job: {"job": job.name, "findings": [json_shapes.episode(e) for e in job.episodes]},
        )

    async def incidents(self, request: Request) -> Response:
        """The incidents of one job, open ones first, then the last closed first."""
        return job_reply(
            self._context.state,
            request,
            lambda job: {"job": job.name, "incidents": [json_shapes.incident(i) for i in job.incidents]},
        )

    async def diagnosis(self, request: Request) -> Response:
        """The open incidents of one job with their causes; the last closed ones if none is open."""
        return job_reply(self._context.state, request, json_shapes.job_diagnosis)

    async def acknowledge(self, request: Request) -> Response:
        """Acknowledges an incident; with `"undo": true`, withdraws the acknowledgement."""
        try:
            body = msgspec.json.decode(await request.body(), type=AckBody)
        except msgspec.MsgspecError as problem:
            return error(400, f'expected {{"reason": ..., "by": ...}}: {problem}')
        if not body.undo and not body.reason.strip():
            return error(400, "reason is empty: give the reason for the acknowledgement")
        number = request.path_params["number"]

        def prepare(job: Job) -> Prepared:
            ack = None if body.undo else Acknowledgement(self._context.clock(), body.by[:64], body.reason[:500])
            found = self._context.pipeline.acknowledging(job, number, ack)
            if found is None:
                known = ", ".join(i.id for i in job.incidents.open) or "none"
                return Prepared(error(404, f"no open incident {job.name}/{number}; open: {known}"))
            incident, change = found
            return Prepared(JSONResponse(json_shapes.incident(incident)), change)

        return await self._context.write_job(request, prepare)

    async def latest_sample(self, request: Request) -> Response:
        """The last sample of one job's layers."""
        name = request.path_params["job"]
        unknown = unknown_job(self._context.state, name)
        if unknown is not None:
            return unknown
        return JSONResponse({"job": name, "sample": await run_in_threadpool(self._context.latest_sample, name)})

    async def declare(self, request: Request) -> Response:
        """Declares an event from outside the run, like `monitor.event` inside it."""
        try:
            body = msgspec.json.decode(await request.body(), type=EventBody)
        except msgspec.MsgspecError as problem:
            return error(400, f'expected {{"kind": ..., "fields": {{...}}}}: {problem}')
        if not 1 <= len(body.kind) <= 64 or len(body.fields) > 64:
            return error(400, "kind must have 1 to 64 characters, fields at most 64 entries")

        def prepare(job: Job) -> Prepared:
            event = Event(
                attempt=job.num_attempts,
                step=job.latest_step,
                time=self._context.clock(),
                kind=body.kind,
                fields=body.fields,
            )
            answer = JSONResponse(json_shapes.event(event), status_code=201)
            return Prepared(answer, self._context.pipeline.declaring(job, event))

        return await self._context.write_job(request, prepare)

    async def columns(self, request: Request) -> Response:
        """The columns of a step and of a rank, with label and unit."""
        return JSONResponse({"columns": [json_shapes.column(each) for each in (*STEP_COLUMNS, *RANK_COLUMNS)]})

    async def rules(self, request: Request) -> Response:
        """Every rule: thresholds, required data, state in each job."""
        return JSONResponse(await run_in_threadpool(self._rules))

    def _rules(self) -> json_shapes.Json:
        about = [describe(rule) for rule in RULES]  # reads their sources, once
        state, force = self._context.state, self._context.thresholds
        jobs = sorted(state.copies(), key=lambda job: -job.last_seen)
        states = [rule_shapes.states(job, force.in_force) for job in jobs]
        with state.lock:
            rows = [
                {
                    **rule_shapes.rule(rule, force.in_force[rule.name], force.origins(rule.name)),
                    **rule_shapes.stats(state.rule_stats.get(rule.name, RuleStats())),
                    "jobs": [of_job[rule.name] for of_job in states],
                }
                for rule in about
            ]
        return {"file": force.file or None, "rules": rows}

    async def config(self, request: Request) -> Response:
        """The thresholds in force, and the origin of each."""
        return JSONResponse(self._config())

    async def configure(self, request: Request) -> Response:
        """Changes thresholds of the running daemon."""
        try:
            body = msgspec.json.decode(await request.body())
        except (msgspec.MsgspecError, RecursionError) as problem:
            return error(400, f'expected {{"rules": {{"<name>": {{"<key>": value}}}}}}: {problem}')
        changed: list[str] = []

        def prepare() -> Prepared:
            try:
                changes, change = self._context.thresholds.posting(body)
            except ConfigError as problem:
                return Prepared(error(400, str(problem)[:MAX_ERROR]))
            changed.extend(changes)
            return Prepared(Response(), change)

        answer = await self._context.write(prepare)
        is_made = answer.status_code == 200
        return JSONResponse({"changed": changed, **self._config()}) if is_made else answer

    def _config(self) -> json_shapes.Json:
        force = self._context.thresholds
        with self._context.state.lock:
            rules = {name: rule_shapes.thresholds(rule, force.origins(name)) for name, rule in force.in_force.items()}
            return {"file": force.file or None, "rules": rules, "note": UNTIL_RESTART}
