"""Makes whole reports of a run of thin steps."""

from collections.abc import Sequence

import msgspec

from caboose_wire.errors import WireError
from caboose_wire.fields import MAX_COUNT
from caboose_wire.messages import Phases, StepReport, StepRun

LATEST = float(2**53)
"""As of `fields.Time`."""


def reports_of(run: StepRun) -> Sequence[StepReport]:
    """The report of each step; WireError if the first is not that of a thin step, or the counts leave their range."""
    first = run.first
    if first.arrays or first.is_sampled or first.part_losses:
        raise WireError("malformed", "StepRun: its first step is no thin one")
    if max(first.seq, first.step, first.model_step) + len(run.steps) > MAX_COUNT:
        raise WireError("malformed", f"StepRun: its last step is beyond {MAX_COUNT}")
    if first.time + sum(step.seconds for step in run.steps) > LATEST:
        raise WireError("malformed", "StepRun: its last step is too late")
    reports, time = [first], first.time
    for number, step in enumerate(run.steps, 1):
        time += step.seconds
        reports.append(
            msgspec.structs.replace(
                first,
                seq=first.seq + number,
                step=first.step + number,
                model_step=first.model_step + number,
                time=time,
                loss=step.loss,
                lr=step.lr,
                phases=Phases(step.seconds),
                num_scheduler_steps=step.num_scheduler_steps,
                num_samples=step.num_samples,
                num_tokens=step.num_tokens,
                batch=step.batch,
            )
        )
    return reports
