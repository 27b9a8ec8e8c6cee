"""The schedule made the learning rate jump, without a restart or warm-up."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.format import amount, plural
from caboose_daemon.incidents.causal_links import BREAKS, STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice


class ScheduleJump(Cause):
    """A learning rate that jumped from one step to the next."""

    id = "schedule_jump"
    title = "jump in the learning-rate schedule"
    is_plain = True
    explains = (
        BREAKS
        | STANDS_STILL
        | {"lr_schedule", "oscillation", "lr_too_high", "dead_units", "activation_collapse", "clipping"}
    )
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        member = case.episode("lr_schedule")
        if member is None:
            if case.is_quiet("lr_schedule") and case.sees("lr"):
                yield opposes(DECISIVE, "the learning rate did not jump")
            return
        values = member.worst.values
        before, lr = values.get("before", 0.0), values.get("lr", 0.0)
        if "jump" in values and before > 0:
            at = member.first.onset_step
            yield supports(
                STRONG, f"learning rate jumped {amount(lr / before)}x ({before:.3g} to {lr:.3g}) at step {at:,}"
            )
            after = [
                m.first.onset_step for m in case.incident.reportable if m.rule in BREAKS and m.first.onset_step >= at
            ]
            if after:
                yield supports(FAIR, f"loss or gradients broke {plural(min(after) - at, 'step')} later")
            else:
                yield supports(FAIR, "no restart, warm-up or change of data was declared there")
        else:
            yield opposes(STRONG, "the learning rate did not jump within the run")

    def advise(self, case: Case) -> Advice:
        member = case.episode("lr_schedule")
        values = {} if member is None else member.worst.values
        before, at = values.get("before", 0.0), case.onset if member is None else member.first.onset_step
        name = case.fact("scheduler") or "the scheduler"
        return Advice(
            first_fix=f"check what {name} does at step {at:,} (milestones, gamma, its optimizer), and resume"
            " from a checkpoint before it if the loss broke",
            code=f"optimizer.param_groups[0]['lr'] = {before:.3g}  # before the jump; gamma below 1 lowers the rate"
            if before
            else "scheduler = MultiStepLR(optimizer, milestones=[30, 60], gamma=0.1)  # gamma below 1 lowers the rate",
            avoid="do not lower the base learning rate: it was fine until it jumped",
            verify="a plot of scheduler.get_last_lr() over all steps shows no unplanned jump",
        )
