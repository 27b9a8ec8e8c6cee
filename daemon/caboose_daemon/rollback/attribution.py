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
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Job
from caboose_daemon.rollback_state.attribution import Attribution, Cordon, cordon_of

LEAD_STEPS = 50
"""Steps by which a jump of the rate may precede what it breaks."""
STILL = 1.5
"""Rate over that before the jump from which the jump still lasts."""
LEAST_SCALE = 1e-3
TIMES = 2
"""Times that numbers broke at one rank first after which its machine is at fault."""
BATCH_CAUSES = frozenset({"outlier_batch", "input_not_finite", "bad_shard"})
LIKELY = 0.3
"""Confidence from which a diagnosis counts."""


def attribute(job: Job, incident: Incident | None, began: int) -> Attribution | None:
    """What an incident that began at this step is attributed to; None where that changes nothing."""
    if incident is None:
        return None
    return _schedule_jump(job, incident, began) or _bad_rank(job, incident) or _bad_batch(incident)


def cordons(job: Job) -> list[Cordon]:
    """Machines that should be taken out, as long as they are a part of the job."""
    hosts = set() if job.attempt is None else {member.hello.host for member in job.attempt.members.values()}
    found = {}
    for incident in job.incidents:
        cordon = cordon_of(_bad_rank(job, incident))
        if cordon is not None and (not cordon.host or cordon.host in hosts):
            found[cordon.host or cordon.rank] = cordon
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
    place = next(
        (found for episode in reversed(incident.episodes) if (found := _machine(job, incident, episode))), None
    )
    if place is None:
        return None
    rank, host = place
    num_times = sum(_is_same(place, other) for other in _culprits(job))
    best = None if incident.diagnosis is None else incident.diagnosis.best
    is_hardware = best is not None and best.id == "hardware_fault" and best.confidence >= LIKELY
    if num_times < TIMES and not is_hardware:
        return None
    why = f"rank {rank} was the first with wrong numbers {num_times} times"
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


def _culprits(job: Job) -> Iterator[tuple[int, str]]:
    for incident in job.incidents:
        for episode in incident.episodes:
            if (place := _machine(job, incident, episode)) is not None:
                yield place


def _machine(job: Job, incident: Incident, episode: Episode) -> tuple[int, str] | None:
    """The rank and host at which wrong numbers began, of several ranks and not in the data; None where not."""
    world, ranks = 1 if job.attempt is None else job.attempt.world, episode.first.ranks
    is_numbers = episode.rule in ("non_finite", "replica_desync") and episode.first.phase != "input"
    has_batch = any(e.rule == "bad_batch" and e.attempt == episode.attempt for e in incident.episodes)
    if world < 2 or len(ranks) != 1 or not is_numbers or has_batch:
        return None
    witness = incident.witness
    if witness is not None and witness.ranks == ranks and witness.host:
        return ranks[0], witness.host
    return ranks[0], "" if job.attempt is None else job.attempt.host_of(ranks[0])


def _is_same(one: tuple[int, str], other: tuple[int, str]) -> bool:
    return one[1] == other[1] if one[1] and other[1] else one[0] == other[0]
