"""A scheduler is attached and has no effect: never stepped, or holding another optimizer."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import DECISIVE, FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice


class SchedulerIdle(Cause):
    """A schedule that is not followed."""

    id = "scheduler_idle"
    title = "the scheduler is attached, but never moves the rate"
    explains = BREAKS | STANDS_STILL | {"lr_schedule", "oscillation", "lr_too_high", "lr_too_low"}
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """A rate that has stood from the start."""
        member = case.episode("lr_schedule")
        if member is None:
            if case.is_quiet("lr_schedule") and case.sees("lr"):
                yield opposes(DECISIVE, "the learning rate follows its schedule, or has none")
            return
        if "unmoved" not in member.worst.values:
            yield opposes(STRONG, "the rate does move")
            return
        yield supports(STRONG, f"the rate has stood at {member.worst.values['lr']:.3g} for all {case.step} steps")
        yield supports(FAIR, f"{case.fact('scheduler') or 'a scheduler'} was given to attach, and should have moved it")

    def advise(self, case: Case) -> Advice:
        """Step it."""
        return Advice(
            first_fix="call scheduler.step() after optimizer.step(), on the scheduler that holds this optimizer",
            code="optimizer.step(); scheduler.step()",
            avoid="do not tune the rate before the schedule works: what you tune is another run",
            verify="scheduler.get_last_lr() changes from step to step, and so does the learning rate on the page",
        )
