"""The schedule made the learning rate jump, and no restart or warm-up was meant."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import DECISIVE, FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice


class ScheduleJump(Cause):
    """A rate that changed from one step to the next."""

    id = "schedule_jump"
    title = "the schedule makes the learning rate jump"
    explains = (
        BREAKS
        | STANDS_STILL
        | {"lr_schedule", "oscillation", "lr_too_high", "dead_units", "activation_collapse", "clipping"}
    )
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The jump itself, and what came after it."""
        member = case.episode("lr_schedule")
        if member is None:
            if case.is_quiet("lr_schedule") and case.sees("lr"):
                yield opposes(DECISIVE, "the learning rate made no jump")
            return
        values = member.worst.values
        before, lr = values.get("before", 0.0), values.get("lr", 0.0)
        if "jump" in values and before > 0:
            at = member.first.onset_step
            yield supports(
                STRONG, f"the rate went from {before:.3g} to {lr:.3g} ({lr / before:.2g} times) at step {at}"
            )
            after = [
                m.first.onset_step for m in case.incident.reportable if m.rule in BREAKS and m.first.onset_step >= at
            ]
            if after:
                yield supports(FAIR, f"the loss broke {min(after) - at} steps later")
            else:
                yield supports(FAIR, "no restart, warm-up or change of data was declared there")
        else:
            yield opposes(STRONG, "the rate did not jump within the run")

    def advise(self, case: Case) -> Advice:
        """Look at the milestone."""
        member = case.episode("lr_schedule")
        values = {} if member is None else member.worst.values
        before, at = values.get("before", 0.0), case.onset if member is None else member.first.onset_step
        name = case.fact("scheduler") or "the scheduler"
        return Advice(
            first_fix=f"look at what {name} does at step {at} (milestones, gamma, its optimizer), and go back"
            " to a checkpoint from before if the loss broke",
            code=f"optimizer.param_groups[0]['lr'] = {before:.3g}  # what it was; gamma below 1 lowers the rate"
            if before
            else "scheduler = MultiStepLR(optimizer, milestones=[...], gamma=0.1)  # gamma below 1 lowers the rate",
            avoid="do not lower the base rate: the rate was fine until it jumped",
            verify="plot scheduler.get_last_lr() over all steps before training: no step up that you did not plan",
        )
