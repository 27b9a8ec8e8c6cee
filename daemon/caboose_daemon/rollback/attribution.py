"""Attributes an incident to the schedule, a batch or a rank, where that changes what a rollback should do.

Design
------
Three faults need more than going back. A jump of the schedule comes with the run: the rate must be set back too, or
the loss breaks again. A bad batch is not fed again, so the rate is not at fault. A machine that makes wrong numbers
will make more of them: once one rank was the first to break twice, or the diagnosis names its hardware, it should be
taken out. A machine is identified by its host, since ranks move at a restart.

All this is read from what the rules found and the diagnosis weighed; nothing is measured here.
"""

from collections.abc import Iterator

from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident, Witness
from caboose_daemon.jobs.job import Job
from caboose_daemon.rollback_state.attribution import Attribution, Cordon, cordon_of

LEAD_STEPS = 50
"""Steps by which a jump of the rate may precede what it breaks."""
STILL = 1.5
"""Rate over that before the jump from which the jump still lasts."""
LEAST_SCALE = 1e-3
TIMES = 2
"""Incidents that began at one rank after which its machine is at fault."""
BATCH_CAUSES = frozenset({"outlier_batch", "input_not_finite", "bad_shard"})
LIKELY = 0.3
"""Confidence from which a diagnosis counts."""


def attribute(job: Job, incident: Incident | None, began: int) -> Attribution | None:
    """What an incident that began at this step is attributed to; None where that changes nothing."""
    if incident is None:
        return None
    return _schedule_jump(job, incident, began) or _bad_rank(job, incident) or _bad_batch(incident)


def cordons(job: Job) -> list[Cordon]:
    """Machines that should be taken out, by the incidents that are open or unresolved."""
    found: dict[tuple[str, int], Cordon] = {}
    for incident in job.incidents:
        if incident.is_open or incident.is_unresolved or incident.is_cut:
            cordon = cordon_of(_bad_rank(job, incident))
            if cordon is not None:
                found[cordon.host, cordon.rank] = cordon
    return list(found.values())


def _schedule_jump(job: Job, incident: Incident, began: int) -> Attribution | None:
    jump = next((e for e in incident.episodes if e.rule == "lr_schedule" and "jump" in e.worst.values), None)
    if jump is None or not began - LEAD_STEPS <= jump.first.onset_step <= began + LEAD_STEPS:
        return None
    before, lr, at = jump.worst.values["before"], jump.worst.values["lr"], jump.first.onset_step
    if not 0.0 < before < lr:
        return None
    text = f"the learning rate jumped {lr / before:.3g}x ({before:.3g} to {lr:.3g}) at step {at}"
    if any(holdings.is_off_schedule for holdings in job.rollback.holdings.values()):
        return Attribution(to="schedule_jump", text=f"{text}, away from its schedule: it is set back to the schedule")
    now = next((s.lr for s in reversed(job.recent) if s.lr is not None), 0.0)
    if now <= STILL * before:
        return Attribution(to="schedule_jump", text=f"{text}, and is back: no scale is needed")
    scale = max(LEAST_SCALE, before / now)
    fix = f"by its schedule, which goes on: it is multiplied by {scale:.3g}; fix the schedule before the next run"
    return Attribution(to="schedule_jump", text=f"{text}, {fix}", lr_scale=scale)


def _bad_rank(job: Job, incident: Incident) -> Attribution | None:
    witness = incident.witness
    if witness is None or not _names_a_machine(job, witness, incident.episodes):
        return None
    rank, host = witness.ranks[0], witness.host
    num_times = sum(_is_same(rank, host, other) for other in _culprits(job))
    best = None if incident.diagnosis is None else incident.diagnosis.best
    is_hardware = best is not None and best.id == "hardware_fault" and best.confidence >= LIKELY
    if num_times < TIMES and not is_hardware:
        return None
    why = f"rank {rank} was the first with wrong numbers in {num_times} incidents"
    if num_times < TIMES and best is not None:
        why = f"the likeliest cause is a hardware fault ({100 * best.confidence:.0f} %)"
    return Attribution(to="bad_rank", text=why, rank=rank, host=host, num_times=num_times)


def _bad_batch(incident: Incident) -> Attribution | None:
    seen = next((e for e in incident.episodes if e.rule == "bad_batch"), None)
    if seen is not None:
        return Attribution(to="bad_batch", text=f"a bad batch: {seen.worst.summary}")
    best = None if incident.diagnosis is None else incident.diagnosis.best
    if best is not None and best.id in BATCH_CAUSES and best.confidence >= LIKELY:
        return Attribution(to="bad_batch", text=f"the likeliest cause is {best.title} ({100 * best.confidence:.0f} %)")
    return None


def _culprits(job: Job) -> Iterator[Witness]:
    for incident in job.incidents:
        if incident.witness is not None and _names_a_machine(job, incident.witness, incident.episodes):
            yield incident.witness


def _names_a_machine(job: Job, witness: Witness, episodes: tuple[Episode, ...]) -> bool:
    """Whether wrong numbers began on one rank of several, and not in its data."""
    world = 1 if job.attempt is None else job.attempt.world
    is_numbers = witness.rule in ("non_finite", "replica_desync") and witness.phase != "input"
    return world > 1 and len(witness.ranks) == 1 and is_numbers and all(e.rule != "bad_batch" for e in episodes)


def _is_same(rank: int, host: str, other: Witness) -> bool:
    return host == other.host if host and other.host else rank == other.ranks[0]
