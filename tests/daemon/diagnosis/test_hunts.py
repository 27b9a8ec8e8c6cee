"""What a hunt found moves the diagnosis of a number that broke, and is shown with it."""

from typing import Any

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_wire import Event
from support.cases import a_case, a_finding, order, told
from support.scenario import scenario

CALM = {"grad_norm": np.full(200, 1.5), "loss": np.full(200, 0.8)}
SEES = frozenset({"loss", "gradients", "weights", "activations", "clipping"})


def a_hunt(step: int = 150, **fields: Any) -> Event:
    """An event as the agent sends it."""
    told: dict[str, Any] = {"summary": "rank 3, step 150: found", "batch_step": step, "rank": 3, **fields}
    return Event(attempt=1, step=step + 8, time=1.0, kind="hunt", fields=told)


def hunted(*events: Event, onset: int = 150, **changes: Any) -> Case:
    """All ranks' loss broke out of calm, and hunts were made."""
    finding = a_finding("non_finite", onset, ranks=(0, 1, 2, 3), phase="forward")
    return a_case(finding, curves=CALM, visible=SEES, world=4, events=events, **changes)


def test_a_batch_that_was_found_bad_leads_and_is_named_in_the_first_fix() -> None:
    summary = "rank 3, step 150: input of batch 149 holds NaN or infinity, in sample 5 of 16"
    event = a_hunt(where="input", summary=summary, samples="5", batch=149)
    before, after = diagnose(hunted()), diagnose(hunted(event))

    assert order(before)[0] != "input_not_finite"
    assert order(after)[0] == "input_not_finite"
    cause = told(after, "input_not_finite")
    assert cause.confidence > 0.8
    assert cause.evidence_for[0] == f"NaN hunt: {summary}"
    assert cause.advice.first_fix.startswith("inspect sample 5 of batch 149 of rank 3")
    assert after.hunts == (summary,)


def test_a_root_whose_backward_broke_names_the_line_to_change() -> None:
    line = "model.py:12 in forward: return torch.sqrt(variance)"
    diagnosis = diagnose(hunted(a_hunt(where="backward", operation="SqrtBackward0", line=line)))

    assert order(diagnosis)[0] == "log_of_zero"
    cause = told(diagnosis, "log_of_zero")
    assert cause.advice.first_fix.startswith("clamp the input of SqrtBackward0 at model.py:12 in forward")
    assert cause.advice.code.startswith("return torch.sqrt(variance)")


def test_an_overflow_of_float16_leads_though_nothing_else_says_that_it_is_in_use() -> None:
    event = a_hunt(where="output", operation="exp", dtype="float16", largest=40.0)
    diagnosis = diagnose(hunted(event, facts={"precision": "float32"}))

    assert order(diagnosis)[0] == "fp16_overflow"


def test_one_corrupted_weight_speaks_for_the_machine_and_a_batch_that_breaks_again_against_it() -> None:
    plain = told(diagnose(hunted(a_hunt(where="parameter", num_tensors=1))), "hardware_fault")
    assert plain.evidence_for[0].startswith("one location in the weights is bad")
    again = diagnose(hunted(a_hunt(where="output", operation="exp")))
    assert "hardware_fault" not in order(again)


def test_hunts_of_other_troubles_and_events_that_are_none_say_nothing() -> None:
    events = (
        a_hunt(20, where="input"),
        a_hunt(where=""),
        a_hunt(where=7, summary=None, rank="x"),
        Event(attempt=1, step=150, time=1.0, kind="note", fields={"where": "input", "summary": "no hunt"}),
    )
    assert hunted(*events).hunts == ()


def test_an_open_incident_is_judged_anew_when_a_hunt_is_told() -> None:
    story = scenario(ranks=4, about="non_finite").healthy(60)
    story.losses(*[float("nan")] * 3)
    (incident,) = story.job.incidents
    assert incident.diagnosis is not None
    assert incident.diagnosis.hunts == ()
    story.says(3, a_hunt(61, where="input", summary="rank 3, step 61: the batch", samples="5"))

    (incident,) = story.job.incidents
    assert incident.diagnosis is not None
    assert incident.diagnosis.hunts == ("rank 3, step 61: the batch",)
    assert incident.diagnosis.causes[0].id == "input_not_finite"
