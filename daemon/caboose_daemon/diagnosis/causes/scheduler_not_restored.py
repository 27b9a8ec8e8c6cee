"""A run was resumed without the state of its scheduler, which begins anew."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import DECISIVE, FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice


class SchedulerNotRestored(Cause):
    """A schedule that forgot where it was."""

    id = "scheduler_not_restored"
    title = "the scheduler's state was not restored on resume"
    explains = BREAKS | STANDS_STILL | {"lr_schedule", "oscillation", "lr_too_high", "lr_too_low", "overfitting"}
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The rate against what it was at the same step, and the scheduler's own count."""
        member = case.episode("lr_schedule")
        if member is None:
            if case.is_quiet("lr_schedule") and case.sees("lr"):
                yield opposes(DECISIVE, "the learning rate goes on as it was")
            return
        values, at = member.worst.values, member.first.onset_step
        if "reset" not in values:
            yield opposes(STRONG, "the schedule did not begin anew")
            return
        before, lr = values.get("before", 0.0), values.get("lr", 0.0)
        yield supports(STRONG, f"at step {at} the rate is {lr:.3g}; before, it was {before:.3g} there")
        if member.attempt > 1 or "resume" in case.incident.regimes:
            yield supports(FAIR, f"that is where attempt {member.attempt} took the run up")

    def advise(self, case: Case) -> Advice:
        """Save and load the scheduler."""
        name = case.fact("scheduler") or "the scheduler"
        return Advice(
            first_fix=f"save and load {name}'s state with the model's and the optimizer's, and resume once more",
            code='scheduler.load_state_dict(checkpoint["scheduler"])  # and save scheduler.state_dict() with it',
            avoid="do not set the rate by hand: the next step of the schedule overwrites it",
            verify=f"the first learning rate after the resume is the last one before it (step {case.onset})",
        )
