"""The JSON API of layers over time: one statistic of all layers, or all statistics of one layer."""

from typing import Annotated, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from caboose_daemon.jobs.job import Job
from caboose_daemon.out.api.layer_map import Keep, layer_history, layer_map
from caboose_daemon.out.api.update_history import typical_updates
from caboose_daemon.out.web.context import Context
from caboose_daemon.out.web.replies import error, unknown_job
from caboose_daemon.steps.samples.stats import STATS, Stat
from caboose_daemon.store.sample_history import SampleReader

Json = dict[str, Any]
MAX_CELLS = 250_000
MAX_SIDE = 2000
LAST_STEP = 2**53
Side = Annotated[int, msgspec.Meta(ge=1, le=MAX_SIDE)]
Step = Annotated[int, msgspec.Meta(ge=0, le=LAST_STEP)]
NEVER = {
    "dead": "no ReLU has a full window of 8 samples yet",
    "saturated": "no tanh or sigmoid was sampled",
    "activation_std": "no sample has activations yet",
}
"""Why a statistic has no sample, if the agent gives no reason and other statistics have samples."""


class MapQuery(msgspec.Struct, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    """The query of GET /api/v1/jobs/{job}/layers."""

    stat: str = "grad_norm"
    points: Side = 240
    rows: Side = 400
    first: Step = 0
    last: Step = LAST_STEP
    keep: Keep = "largest"
    names: bool = False
    """Whether each row lists all its names."""


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    """The query of GET /api/v1/jobs/{job}/layers/{layer}."""

    first: Step = 0
    last: Step = LAST_STEP


class LayersApi:
    """The endpoints; they only read the journal."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route("/api/v1/jobs/{job}/updates", self.updates),
            Route("/api/v1/jobs/{job}/layers", self.layers),
            Route("/api/v1/jobs/{job}/layers/{layer:path}", self.layer),
        ]

    async def layers(self, request: Request) -> Response:
        """One statistic, layers by samples."""
        try:
            query = msgspec.convert(dict(request.query_params), MapQuery, strict=False)
        except msgspec.ValidationError as problem:
            return error(400, f"expected ?stat=S&points=N&rows=M&from=A&to=B, N and M to {MAX_SIDE}: {problem}"[:500])
        stat = STATS.get(query.stat)
        if stat is None:
            return error(400, f"stat={query.stat[:64]!r}: choose one of {', '.join(STATS)}")
        if query.points * query.rows > MAX_CELLS:
            return error(400, f"{query.points} points x {query.rows} rows: give at most {MAX_CELLS:,} cells")
        name = request.path_params["job"]
        asked = self._about(name)
        if isinstance(asked, Response):
            return asked

        def ask(reader: SampleReader) -> Json:
            sides = {"points": query.points, "rows": query.rows, "first": query.first, "last": query.last}
            counts = reader.counts()
            return {
                "job": name,
                **asked,
                "stats": [_availability(s, counts, asked["blind"]) for s in STATS.values()],
                **layer_map(reader, stat, keep=query.keep, has_names=query.names, **sides),
            }

        return JSONResponse(await run_in_threadpool(self._context.samples, name, ask))

    async def updates(self, request: Request) -> Response:
        """The typical update-to-weight ratio of every sample."""
        name = request.path_params["job"]
        asked = self._about(name)
        if isinstance(asked, Response):
            return asked
        updates = await run_in_threadpool(
            self._context.samples, name, lambda reader: {"updates": typical_updates(reader)}
        )
        return JSONResponse({"job": name, **updates})

    async def layer(self, request: Request) -> Response:
        """Every statistic of one layer and of its module."""
        try:
            query = msgspec.convert(dict(request.query_params), HistoryQuery, strict=False)
        except msgspec.ValidationError as problem:
            return error(400, f"expected ?from=A&to=B: {problem}"[:500])
        name, wanted = request.path_params["job"], request.path_params["layer"]
        asked = self._about(name)
        if isinstance(asked, Response):
            return asked

        def ask(reader: SampleReader) -> Json:
            layer, module = _find(reader, wanted)
            if layer is None and module is None:
                return {}
            counts = reader.counts()
            return {
                "job": name,
                **asked,
                "layer": None if layer is None else _layer(reader, layer),
                "module": None if module is None else _module(reader, module),
                "availability": [_availability(s, counts, asked["blind"]) for s in STATS.values()],
                **layer_history(reader, layer, module, query.first, query.last),
            }

        answer = await run_in_threadpool(self._context.samples, name, ask)
        if answer:
            return JSONResponse(answer)
        return error(404, f"no layer {wanted[:256]!r} in {name}; /api/v1/jobs/{name}/sample lists the names")

    def _about(self, name: str) -> Json | Response:
        """The job's facts that only the state has, or 404."""
        state = self._context.state
        job = state.copy_of(name)
        if job is None:
            return unknown_job(state, name) or error(404, f"no job {name!r}")
        return {"blind": dict(job.blind), "sample_every": _sample_every(job), "step": job.latest_step}


def _sample_every(job: Job) -> int | None:
    """Current interval between samples in steps; None if unknown."""
    reports = job.last.reports.values() if job.last is not None else ()
    return max((report.sample_every for report in reports), default=0) or None


def _availability(stat: Stat, counts: dict[str, int], blind: dict[str, str]) -> Json:
    """The number of samples of a statistic, or the reason for none."""
    num, reason = counts[stat.name], None
    if not num:
        other = NEVER.get(stat.name, "no sample has it yet") if any(counts.values()) else "no sample yet"
        reason = blind.get(stat.needs) or other
    return {"stat": stat.name, "of": stat.of, "num_sampled": num, "reason": reason}


def _find(reader: SampleReader, wanted: str) -> tuple[int | None, int | None]:
    """Rows of a layer and of its module, found by layer name, module name or layer number."""
    layers, modules = reader.model.names("layer"), reader.model.names("module")
    layer = layers.index(wanted) if wanted in layers else None
    if layer is None and wanted not in modules and wanted.isdecimal() and len(wanted) < 6 and int(wanted) < len(layers):
        layer = int(wanted)
    owner = wanted if layer is None else layers[layer].rpartition(".")[0]
    return layer, modules.index(owner) if owner in modules else None


def _layer(reader: SampleReader, row: int) -> Json:
    layer = reader.model.layers[row]
    return {
        "index": row,
        "num_layers": len(reader.model.layers),
        "name": layer.name,
        "kind": layer.kind,
        "numel": layer.numel,
        "is_trainable": layer.trainable,
        "placement": layer.placement,
    }


def _module(reader: SampleReader, row: int) -> Json:
    module = reader.model.modules[row]
    return {"index": row, "name": module.name, "kind": module.kind, "num_units": module.num_units}
