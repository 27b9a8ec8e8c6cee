"""The run was resumed without the state of its scheduler, which started again."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice


class SchedulerNotRestored(Cause):
    """A schedule that started again after a resume."""

    id = "scheduler_not_restored"
    title = "scheduler state not restored on resume"
    is_plain = True
    explains = BREAKS | STANDS_STILL | {"lr_schedule", "oscillation", "lr_too_high", "lr_too_low", "overfitting"}
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        member = case.episode("lr_schedule")
        if member is None:
            if case.is_quiet("lr_schedule") and case.sees("lr"):
                yield opposes(DECISIVE, "the learning rate continues its schedule")
            return
        values, at = member.worst.values, member.first.onset_step
        if "reset" not in values:
            yield opposes(STRONG, "the schedule did not start again")
            return
        before, lr = values.get("before", 0.0), values.get("lr", 0.0)
        yield supports(STRONG, f"learning rate {lr:.3g} at step {at:,}, {before:.3g} before")
        if member.attempt > 1 or "resume" in case.incident.regimes:
            yield supports(FAIR, f"attempt {member.attempt} resumed there")

    def advise(self, case: Case) -> Advice:
        name = case.fact("scheduler") or "the scheduler"
        return Advice(
            first_fix=f"save and load {name}'s state with the model's and the optimizer's, and resume again",
            code='scheduler.load_state_dict(checkpoint["scheduler"])  # and save scheduler.state_dict() with it',
            avoid="do not set the learning rate manually: the next scheduler step overwrites it",
            verify=f"the first learning rate after the resume equals the last one before it (step {case.onset:,})",
        )
