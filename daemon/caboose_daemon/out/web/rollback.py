"""The JSON API of rollback: what was decided, what could be gone back to, and asking for it by hand."""

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from caboose_daemon.jobs.job import Job
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.web.context import Context
from caboose_daemon.out.web.security import error
from caboose_daemon.rollback import requests
from caboose_daemon.rollback.lr_suggestion import offer
from caboose_wire.rollback import CommandKind

MAX_NAME = 64


class RollbackBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/v1/jobs/{job}/rollback."""

    to: int | None = None
    skip: int = 0
    lr_scale: float = 1.0
    dry_run: bool = False
    by: str = ""


class CommandBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/v1/jobs/{job}/commands."""

    kind: CommandKind
    to: int | None = None
    """The snapshot to hunt on."""
    lr_scale: float = 1.0
    dry_run: bool = False
    by: str = ""


class RollbackApi:
    """The endpoints. A write answers at once with the decision; what becomes of it is in GET .../decisions."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """The routes, for the application."""
        return [
            Route("/api/v1/jobs/{job}/decisions", self.decisions),
            Route("/api/v1/jobs/{job}/ledger", self.ledger),
            Route("/api/v1/jobs/{job}/rollback", self.rollback, methods=["POST"]),
            Route("/api/v1/jobs/{job}/commands", self.command, methods=["POST"]),
        ]

    async def decisions(self, request: Request) -> Response:
        """How rollback stands in one job, and every decision, the newest first."""
        budget, now = self._context.rollback.budget, self._context.clock()

        def shape(job: Job) -> json_shapes.Json:
            rows = [json_shapes.decision(decision) for decision in reversed(job.rollback.decisions)]
            now_ = json_shapes.rollback(job, budget, now)
            return {"job": job.name, **now_, "offer": offer(job), "decisions": rows}

        return self._with_job(request, shape)

    async def ledger(self, request: Request) -> Response:
        """Every snapshot and checkpoint of one job with its health, the newest first."""
        return self._with_job(
            request,
            lambda job: {"job": job.name, "entries": [json_shapes.entry(entry) for entry in job.rollback.ledger]},
        )

    async def rollback(self, request: Request) -> Response:
        """Asks for a rollback."""
        try:
            body = msgspec.json.decode(await request.body(), type=RollbackBody)
        except msgspec.MsgspecError as problem:
            return error(400, f'expected {{"to": step, "skip": steps, "lr_scale": x, "dry_run": bool}}: {problem}')
        asked = requests.Request(
            to=body.to, skip=body.skip, lr_scale=body.lr_scale, is_dry=body.dry_run, by=body.by[:MAX_NAME]
        )
        return self._ask(request, asked)

    async def command(self, request: Request) -> Response:
        """Asks for another command."""
        try:
            body = msgspec.json.decode(await request.body(), type=CommandBody)
        except msgspec.MsgspecError as problem:
            return error(400, f'expected {{"kind": ..., "lr_scale": x, "dry_run": bool}}: {problem}')
        asked = requests.Request(
            kind=body.kind, to=body.to, lr_scale=body.lr_scale, is_dry=body.dry_run, by=body.by[:MAX_NAME]
        )
        return self._ask(request, asked)

    def _ask(self, request: Request, asked: requests.Request) -> Response:
        problem = asked.problem()
        if problem:
            return error(400, problem)
        name, state = request.path_params["job"], self._context.state
        with state.lock:
            job = state.jobs.get(name)
            if job is None:
                return self._unknown(name)
            decision = self._context.by_hand.ask(job, asked, self._context.clock())
            body = json_shapes.decision(decision)
        if decision.state == "refused":
            return JSONResponse({"error": decision.outcome, **body}, status_code=409)
        return JSONResponse(body, status_code=200 if asked.is_dry else 202)

    def _with_job(self, request: Request, shape: Callable[[Job], json_shapes.Json]) -> Response:
        name, state = request.path_params["job"], self._context.state
        with state.lock:
            job = state.jobs.get(name)
            body = None if job is None else shape(job)
        return self._unknown(name) if body is None else JSONResponse(body)

    def _unknown(self, name: str) -> Response:
        with self._context.state.lock:
            known = sorted(self._context.state.jobs)[:20]
        return error(404, f"no job {name[:128]!r}; known: {', '.join(known) or 'none yet'}", unknown="job")
