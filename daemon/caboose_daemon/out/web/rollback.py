"""The JSON API of rollback: decisions, ledger, and manual requests."""

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from caboose_daemon.jobs.job import Job
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.web.context import Context
from caboose_daemon.out.web.replies import error, job_reply
from caboose_daemon.out.web.writes import Prepared
from caboose_daemon.rollback import requests
from caboose_daemon.rollback.lr_suggestion import suggest_lr_scale
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
    max_norm: float = 0.0
    """For `clip`: the limit of the gradient norm; 0 takes it away."""
    dry_run: bool = False
    by: str = ""


class RollbackApi:
    """The endpoints. A write returns the decision at once; its outcome is in GET .../decisions."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route("/api/v1/jobs/{job}/decisions", self.decisions),
            Route("/api/v1/jobs/{job}/ledger", self.ledger),
            Route("/api/v1/jobs/{job}/rollback", self.rollback, methods=["POST"]),
            Route("/api/v1/jobs/{job}/commands", self.command, methods=["POST"]),
        ]

    async def decisions(self, request: Request) -> Response:
        """The rollback state of one job, and every decision, newest first."""
        budget, now = self._context.rollback.budget, self._context.clock()

        def shape(job: Job) -> json_shapes.Json:
            rows = [json_shapes.decision(decision) for decision in reversed(job.rollback.decisions)]
            now_ = json_shapes.rollback(job, budget, now)
            return {"job": job.name, **now_, "offer": suggest_lr_scale(job), "decisions": rows}

        return job_reply(self._context.state, request, shape)

    async def ledger(self, request: Request) -> Response:
        """Every snapshot and checkpoint of one job with its health, newest first."""
        return job_reply(
            self._context.state,
            request,
            lambda job: {"job": job.name, "entries": [json_shapes.entry(entry) for entry in job.rollback.ledger]},
        )

    async def rollback(self, request: Request) -> Response:
        """Requests a rollback."""
        try:
            body = msgspec.json.decode(await request.body(), type=RollbackBody)
        except msgspec.MsgspecError as problem:
            return error(400, f'expected {{"to": step, "skip": steps, "lr_scale": x, "dry_run": bool}}: {problem}')
        asked = requests.ManualRequest(
            to=body.to, skip=body.skip, lr_scale=body.lr_scale, is_dry=body.dry_run, by=body.by[:MAX_NAME]
        )
        return await self._ask(request, asked)

    async def command(self, request: Request) -> Response:
        """Requests any other command."""
        try:
            body = msgspec.json.decode(await request.body(), type=CommandBody)
        except msgspec.MsgspecError as problem:
            return error(400, f'expected {{"kind": ..., "lr_scale": x, "max_norm": x, "dry_run": bool}}: {problem}')
        asked = requests.ManualRequest(
            kind=body.kind,
            to=body.to,
            lr_scale=body.lr_scale,
            max_norm=body.max_norm,
            is_dry=body.dry_run,
            by=body.by[:MAX_NAME],
        )
        return await self._ask(request, asked)

    async def _ask(self, request: Request, asked: requests.ManualRequest) -> Response:
        problem = asked.problem()
        if problem:
            return error(400, problem)

        def prepare(job: Job) -> Prepared:
            decision, change = self._context.requests.asking(job, asked, self._context.clock())
            body = json_shapes.decision(decision)
            if decision.state == "refused":
                return Prepared(JSONResponse({"error": decision.outcome, **body}, status_code=409), change)
            return Prepared(JSONResponse(body, status_code=200 if asked.is_dry else 202), change)

        return await self._context.write_job(request, prepare)
