"""A scheduler is attached and has no effect: never stepped, or attached to another optimizer."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice


class SchedulerIdle(Cause):
    """A scheduler that never changes the learning rate."""

    id = "scheduler_idle"
    title = "scheduler without effect"
    is_plain = True
    explains = BREAKS | STANDS_STILL | {"lr_schedule", "oscillation", "lr_too_high", "lr_too_low"}
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        member = case.episode("lr_schedule")
        if member is None:
            if case.is_quiet("lr_schedule") and case.sees("lr"):
                yield opposes(DECISIVE, "the learning rate follows its schedule, or has none")
            return
        if "unmoved" not in member.worst.values:
            yield opposes(STRONG, "the learning rate does change")
            return
        yield supports(STRONG, f"learning rate constant at {member.worst.values['lr']:.3g} for all {case.step:,} steps")
        yield supports(FAIR, f"{case.fact('scheduler') or 'a scheduler'} was passed to attach and should change it")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="call scheduler.step() after optimizer.step(), on the scheduler that holds this optimizer",
            code="optimizer.step(); scheduler.step()",
            avoid="do not tune the learning rate before the schedule works",
            verify="scheduler.get_last_lr() and the learning rate on the page change from step to step",
        )
