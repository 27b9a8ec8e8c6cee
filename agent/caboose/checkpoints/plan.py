"""`caboose.resume_plan`: from which checkpoint a restarted run resumes, and what it does differently.

Design
------
There are two sources. The daemon's ledger knows which checkpoints are healthy, including those of the user's own code;
the disk knows which are complete. The daemon's order comes first, then what it does not know, newest first; the first
complete one is taken, and every better one is listed with the reason why not. A checkpoint that the ledger or a mark
calls tainted is never taken, not even as the last: whether a run starts over for lack of a checkpoint is for people to
decide.

Every rank must resume from the same place, so with a process group rank 0 decides and the others receive its plan.
torch is not imported unless it is already.
"""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from caboose.checkpoints import layout, manifest
from caboose.checkpoints.errors import CheckpointRefused
from caboose.checkpoints.plan_request import NoAnswer, ask
from caboose.report import identity
from caboose.report.daemon_log import printable
from caboose.report.identity import STEP_TASKS
from caboose.settings import environment
from caboose_wire import Plan, PlanRequest

logger = logging.getLogger("caboose")

PATIENCE_SECONDS = 3600.0
"""How long other ranks wait for rank 0, which may have to read a large checkpoint completely."""
MAX_REASON = 1000


class ResumePlan(msgspec.Struct, frozen=True, kw_only=True):
    """From where to resume, and what to do differently."""

    checkpoint: str | None = None
    """Path of the checkpoint to load; None if there is none that may be used."""
    step: int = 0
    """The step after which it was saved; training continues with the next. 0 without a checkpoint."""
    is_ours: bool = False
    """Whether Caboose wrote it; one of your own is loaded by your own code."""
    health: str = ""
    """healthy or unproven in the daemon's ledger; empty if it is not listed."""
    best: str | None = None
    """Path of the checkpoint with the best validation loss; None where the daemon knows of none."""
    others: tuple[str, ...] = ()
    """The next best, best first, not checked yet."""
    skip: tuple[tuple[int, int], ...] = ()
    """First and last of steps whose batches should be skipped; also those before `step`, for an older checkpoint."""
    lr_scale: float = 1.0
    lr_scales: dict[str, float] = {}
    """The same for those of `others` that need another, by path."""
    rejected: tuple[tuple[str, str], ...] = ()
    """Better or newer checkpoints that are not used, each with the reason."""
    source: Literal["daemon", "disk"] = "disk"
    reason: str = ""
    """The daemon's reason, or why there is no answer."""

    @property
    def is_new_run(self) -> bool:
        """Whether there never was a complete checkpoint; if some exist and none may be used, someone should check."""
        return self.checkpoint is None and all(path.endswith(layout.INCOMPLETE) for path, _ in self.rejected)

    def skips(self, step: int) -> bool:
        """Whether the batch of this step should be skipped."""
        return any(first <= step <= last for first, last in self.skip)

    def explain(self) -> str:
        """The plan as text, one line each."""
        if self.checkpoint is not None:
            says = f", {self.health} by the daemon's ledger" if self.health else ""
            lines = [f"Resume from {self.checkpoint}, after step {self.step}{says}."]
        elif self.is_new_run:
            lines = ["There is no checkpoint: the run starts from the beginning."]
        else:
            lines = ["No checkpoint may be used. Check why before the run starts from the beginning."]
        lines += [
            f"Skip the batches of steps {max(first, self.step + 1)} to {last}."
            for first, last in self.skip
            if last > self.step
        ]
        if self.lr_scale != 1.0:
            lines.append(f"Multiply the learning rate by {self.lr_scale:g}.")
        lines += [f"Not used: {path}: {reason}." for path, reason in self.rejected]
        if self.source == "disk":
            lines.append(f"Without the daemon ({self.reason}): the newest complete checkpoint on disk, healthy or not.")
        elif self.reason:
            lines.append(f"The daemon: {self.reason}")
        return "\n".join(lines)


class _Candidate(msgspec.Struct, frozen=True):
    path: Path
    step: int
    health: str
    reason: str
    lr_scale: float = 1.0


def resume_plan(
    directory: Path | str | None = None,
    *,
    job: str | None = None,
    endpoint: str | None = None,
    world_size: int | None = None,
    timeout: float = 5.0,
    verify: bool = True,
) -> ResumePlan:
    """From where this run should resume, by the daemon's ledger and the complete checkpoints on disk.

    `directory` is where Caboose saves checkpoints; job and endpoint are found as in `attach`. Call it on every rank,
    or on one that passes it on; with a process group it is a collective, and all get the same plan. `timeout` is the
    wait for the daemon, in seconds. `verify` reads the chosen checkpoint completely to compare checksums; without it,
    only names and sizes are checked (loading compares checksums in any case).
    """
    chosen = None if environment.is_disabled(os.environ) else environment.resolve(os.environ, endpoint=endpoint)
    name = identity.resolve(os.environ, job=job, rank=0, world=world_size or 1).job
    place = None if directory is None else Path(directory).absolute()
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        world = world_size or _world(os.environ)
        return _decide(place, _asked(chosen, name, world, timeout), world, verify=verify)
    from caboose.checkpoints.exchange import Exchange

    exchange = Exchange(PATIENCE_SECONDS)
    try:
        world = world_size or exchange.world

        def decide() -> str | None:
            if exchange.rank != 0:
                return None
            found = _decide(place, _asked(chosen, name, world, timeout), world, verify=verify)
            return msgspec.json.encode(found).decode()

        return msgspec.json.decode(exchange.agree("planning", decide)[0], type=ResumePlan)
    finally:
        exchange.close()


def _world(env: Mapping[str, str]) -> int:
    """From the launcher's variables; 0 if there are none, which matches any."""
    text = env.get("WORLD_SIZE") or env.get(STEP_TASKS) or ""
    return int(text) if text.isdecimal() else 0


def _asked(chosen: environment.Settings | None, job: str, world: int, timeout: float) -> Plan | str:
    """The daemon's plan, or why there is none."""
    if chosen is None:
        return "CABOOSE_DISABLED is set"
    try:
        return ask(chosen.endpoint, chosen.curve, PlanRequest(job=job, world=world), timeout)
    except NoAnswer as error:
        return str(error)


def _decide(directory: Path | None, answer: Plan | str, world: int, *, verify: bool) -> ResumePlan:
    if directory is not None:
        try:
            layout.give_names_back(directory)
        except OSError as error:  # the others can still be used
            logger.warning("caboose: an interrupted save in %s cannot be cleaned up: %s", directory, error)
    candidates = _candidates(directory, answer)
    rejected: list[tuple[str, str]] = []
    if directory is not None:
        rejected += [(str(path), "it was interrupted while it was written") for path in layout.leftovers_in(directory)]
    taken: _Candidate | None = None
    others: list[_Candidate] = []
    for candidate in candidates:
        if taken is not None:
            others += [candidate] * (candidate.health != "tainted")
            continue
        why = _objection(candidate, directory, world, verify=verify)
        if why:
            rejected.append((str(candidate.path), why))
        else:
            taken = candidate
    is_answered = isinstance(answer, Plan)
    lr_scale = answer.lr_scale if isinstance(answer, Plan) else 1.0
    if taken is not None:
        lr_scale = taken.lr_scale
    return ResumePlan(
        checkpoint=None if taken is None else str(taken.path),
        step=0 if taken is None else taken.step,
        is_ours=taken is not None and layout.is_ours(taken.path),
        health="" if taken is None else taken.health,
        best=_best(answer),
        others=tuple(str(other.path) for other in others),
        skip=answer.skip if isinstance(answer, Plan) else (),
        lr_scale=lr_scale,
        lr_scales={str(other.path): other.lr_scale for other in others if other.lr_scale != lr_scale},
        rejected=tuple(rejected),
        source="daemon" if is_answered else "disk",
        reason=printable(answer.reason, MAX_REASON) if isinstance(answer, Plan) else answer,
    )


def _best(answer: Plan | str) -> str | None:
    planned = answer.checkpoints if isinstance(answer, Plan) else ()
    return next((checkpoint.path for checkpoint in planned if checkpoint.is_best), None)


def _candidates(directory: Path | None, answer: Plan | str) -> list[_Candidate]:
    """Best first: in the daemon's order, then those it does not know."""
    found: dict[Path, _Candidate] = {}
    lr_scale = answer.lr_scale if isinstance(answer, Plan) else 1.0
    for planned in answer.checkpoints if isinstance(answer, Plan) else ():
        path = Path(planned.path)
        scale = lr_scale if planned.lr_scale is None else planned.lr_scale
        found.setdefault(path.resolve(), _Candidate(path, planned.step, planned.health, planned.reason, scale))
    for step, path in layout.steps_in(directory).items() if directory is not None else ():
        known = found.get(path.resolve())
        if layout.is_marked(path, "tainted") and (known is None or known.health != "tainted"):
            found[path.resolve()] = _Candidate(path, step, "tainted", "it is marked `tainted`", lr_scale)
        elif known is None:
            found[path.resolve()] = _Candidate(path, step, "", "", lr_scale)
    return list(found.values())


def _objection(candidate: _Candidate, directory: Path | None, world: int, *, verify: bool) -> str:
    """Why this one may not be used; empty if it may."""
    path = candidate.path
    if candidate.health == "tainted":
        return f"tainted: {candidate.reason}" if candidate.reason else "tainted"
    is_own_place = directory is not None and path.resolve().parent == directory.resolve()
    if not layout.is_ours(path) and not (is_own_place and path.name.startswith("step-")):
        return "" if path.exists() else "it is not there"
    try:
        described = manifest.read(path)
        manifest.check_sizes(path, described)
        if world:
            manifest.check_world(path, described, world)
        if verify:
            manifest.check_sums(path, described)
    except CheckpointRefused as refused:
        return refused.reason
    return ""
