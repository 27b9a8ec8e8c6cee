"""One hunt on one rank: checks weights and batch, runs the batch again, and names what broke first.

Design
------
The order is that of causes. Bad weights explain everything after them, so the batch is then not run again; but if the
batch itself is bad too, that made them bad. With good weights, the batch is run once under `tracing`. If the result is
finite, nothing is blamed, whatever was seen on the way (a model may mask bad inputs). If it is bad, the first of these
is the answer: the batch's inputs, an operation of a module's forward, a bad buffer that it reads, the loss after it, an
operation of the backward.

Which samples: those with bad inputs, or with bad rows in the operation's output; if neither shows it, halves of the
batch are run, a bounded number of times and for a bounded time, without trace.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from caboose.hunting.bad_numbers import BadTensor, Weights, at_inputs, at_weights, is_bad
from caboose.hunting.capturing import Call, Capture, tensors
from caboose.hunting.model_guard import RestoredModel, restored
from caboose.hunting.result import HuntResult
from caboose.hunting.running import Again, LossFunction, RerunResult, backward, forward, settled
from caboose.hunting.samples import part_of, search
from caboose.hunting.tracing import Alone, Trace
from caboose.tensors.shards import is_fsdp
from caboose.trials.batches import parted

MAX_SECONDS = 60.0
"""No further run is started after that."""
MAX_NAMED = 32

SHARDED = (
    "the parameters are sharded, so a forward is a collective: a rank that fails in it, or runs it once more than the "
    "others, would leave them waiting forever; only weights and batch were checked"
)
SPOILED = (
    "an update with a bad gradient made the weights bad: its batch cannot be run again on them. "
    'rollback="auto" keeps weights from before it, Rollback(skip_step="nonfinite") or a GradScaler skip the update, '
    "or call hunt_nan before optimizer.step"
)


@dataclass(frozen=True, slots=True)
class Suspect:
    """What is to be investigated."""

    model: torch.nn.Module
    """Unwrapped."""
    optimizers: Sequence[torch.optim.Optimizer]
    capture: Capture
    loss_fn: LossFunction | None = None
    batch: Any = None
    """The caller's batch; else the watched loader's, if there is one."""
    rank: int = 0
    weights_of: int | None = None


def investigate(suspect: Suspect, clock: Callable[[], float] = time.perf_counter) -> HuntResult:
    """The result, including what the user's code raised; everything is restored."""
    began, capture = clock(), suspect.capture
    blank = HuntResult(
        step=capture.step,
        rank=suspect.rank,
        batch=capture.batch,
        epoch=capture.epoch,
        weights_of=suspect.weights_of,
    )
    weights = at_weights(suspect.model, () if suspect.weights_of is not None else suspect.optimizers)
    found = replace(blank, notes=tuple(_beside(weights)))
    calls = [_again(suspect, call) for call in capture.calls]
    reason = SHARDED if is_fsdp(suspect.model) else ""
    if not calls:
        reason = capture.why_empty or "no batch is kept: attach(..., hunt=True) keeps the last one, or pass batch="
    if weights.parameters and not reason:
        reason = SPOILED if weights.are_spoiled else "the weights are bad, which explains everything after them"
    if reason:
        found = replace(_at_rest(found, weights, calls), declined=reason)
    else:
        for number, again in enumerate(calls):
            at_rest = _at_rest(found, weights, [again])
            found = _run(at_rest, suspect, again, weights.buffers, lambda: clock() - began < MAX_SECONDS)
            if found.is_found or clock() - began >= MAX_SECONDS:
                if len(calls) > 1:
                    found = _noted(found, f"micro-batch {number + 1} of {len(calls)}")
                break
        if not found.is_found and capture.num_left_out:
            found = _noted(found, f"{capture.num_left_out} more forwards of the step were not kept")
    return replace(found, took_seconds=clock() - began)


def _again(suspect: Suspect, call: Call) -> Again:
    batch = suspect.batch if suspect.batch is not None else call.batch
    return Again(call, suspect.loss_fn if batch is not None else None, batch)


def _beside(weights: Weights) -> list[str]:
    notes = []
    for what, bad in (("buffer", weights.buffers), ("optimizer state", weights.states)):
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            notes.append(f"{what} not finite: {bad[0].name} ({bad[0].num_bad} elements){more}")
    return notes


def _bad_inputs(again: Again) -> list[BadTensor]:
    """In the model's inputs; if those are fine, in the loader's batch, which has the targets too."""
    return at_inputs(again.call.args, "input") + at_inputs(again.call.kwargs, "") or at_inputs(again.batch, "batch")


def _at_rest(found: HuntResult, weights: Weights, calls: list[Again]) -> HuntResult:
    """What is bad before anything is run."""
    for again in calls:
        bad = _bad_inputs(again)
        if bad:
            return _of_inputs(found, bad, again)
    if weights.parameters:
        names = tuple(bad.name for bad in weights.parameters)
        return replace(
            found,
            where="parameter",
            tensors=names[:MAX_NAMED],
            num_tensors=len(names),
            num_bad=sum(bad.num_bad for bad in weights.parameters),
        )
    return found


def _of_buffers(found: HuntResult, bad: Sequence[BadTensor]) -> HuntResult:
    """The answer where no operation made the bad numbers: they were in a tensor that the forward reads."""
    if not bad:
        return _noted(found, "no operation made them: the model or the loss holds a constant that is not finite")
    return replace(
        found,
        where="buffer",
        module="",
        module_kind="",
        samples=(),
        tensors=tuple(tensor.name for tensor in bad)[:MAX_NAMED],
        num_tensors=len(bad),
        num_bad=sum(tensor.num_bad for tensor in bad),
    )


def _of_inputs(found: HuntResult, bad: list[BadTensor], again: Again) -> HuntResult:
    count = _num_samples(again)
    rows = bad[0].rows if bad[0].num_rows < count or count == 1 else ()
    return replace(
        found,
        where="input",
        tensors=tuple(tensor.name for tensor in bad)[:MAX_NAMED],
        num_tensors=len(bad),
        num_bad=sum(tensor.num_bad for tensor in bad),
        samples=rows,
        num_samples=count,
    )


def _num_samples(again: Again) -> int:
    for tensor in tensors((again.call.args, again.call.kwargs, again.batch)):
        if tensor.dim():
            return int(tensor.shape[0])
    return 0


def _run(
    at_rest: HuntResult,
    suspect: Suspect,
    again: Again,
    bad_buffers: Sequence[BadTensor],
    has_time: Callable[[], bool],
) -> HuntResult:
    """Runs the batch again, observed."""
    model = suspect.model
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    found = replace(
        at_rest, where="", tensors=(), num_tensors=0, num_bad=0, samples=(), num_samples=_num_samples(again)
    )
    if again.call.was_changed:
        found = _noted(found, "the inputs were changed in place after the forward: this is not quite what was run")
    with restored(model) as kept:
        try:
            again = settled(model, again, device)
        except TypeError as error:
            return replace(at_rest, declined=str(error))
        kept.put_back()
        trace = Trace(model, found.num_samples)
        try:
            with trace:
                outcome = forward(model, again, device)
                gradients, trouble = _gradients(model, outcome)
        except Exception as error:  # noqa: BLE001 - the user's own code, under circumstances that it was not made for
            event = trace.first(is_backward=False)
            if event is None:
                why = f"the batch could not be run again: {type(error).__name__}: {str(error)[:200]}"
                return replace(at_rest, declined=why)
            return _noted(_of_event(found, "output", trace), f"then it raised {type(error).__name__}: {error!s:.200}")
        found = _judge(found, at_rest, suspect.capture, outcome, trace, gradients)
        if found.where in ("output", "loss") and not found.operation:
            found = _of_buffers(found, bad_buffers)
        if trouble and found.where != "input":
            found = _noted(found, trouble)
        if found.where in ("output", "loss", "backward"):
            found = _noted(found, _ranges(again, outcome))
        if outcome.loss is None and found.where != "input":
            found = _noted(found, "the loss itself was not run: no loss_fn, so the backward began at the outputs' sum")
        if found.where in ("output", "loss", "backward") and not found.samples and has_time():
            found = replace(found, samples=_search(kept, again, device, found, has_time))
    return found


def _ranges(again: Again, outcome: RerunResult) -> str:
    """The finite range of the targets and of the outputs: a label out of range and a huge logit show here."""
    parts = []
    targets = parted(again.batch)[1] if again.batch is not None else None
    for name, found in (("targets", targets), ("outputs", next(iter(outcome.outputs), None))):
        values = found.detach()[torch.isfinite(found.detach())] if found is not None else torch.zeros(0)
        if values.numel():
            parts.append(f"{name} from {float(values.min()):.4g} to {float(values.max()):.4g}")
    return ", ".join(parts)


def _gradients(model: torch.nn.Module, outcome: RerunResult) -> tuple[dict[str, torch.Tensor], str]:
    """The gradients, or why there are none."""
    if outcome.root is None or not outcome.root.requires_grad:
        return {}, "the backward was not run: what came out depends on no parameter"
    try:
        return backward(model, outcome.root), ""
    except Exception as error:  # noqa: BLE001 - such as reentrant checkpointing, which does not support autograd.grad
        return {}, f"the backward could not be run: {type(error).__name__}: {str(error)[:200]}"


def _judge(
    found: HuntResult,
    at_rest: HuntResult,
    capture: Capture,
    outcome: RerunResult,
    trace: Trace,
    gradients: dict[str, torch.Tensor],
) -> HuntResult:
    has_bad_outputs = any(is_bad(tensor) for tensor in outcome.outputs) and trace.first(is_backward=False) is not None
    has_bad_outputs |= any(bool(torch.isnan(tensor).any()) for tensor in outcome.outputs)
    has_bad_loss = outcome.loss is not None and is_bad(outcome.loss)
    bad_gradients = [name for name, gradient in gradients.items() if is_bad(gradient)]
    if not (has_bad_outputs or has_bad_loss or bad_gradients):
        if at_rest.where == "input":
            return _noted(
                found, f"{', '.join(at_rest.tensors)} holds bad numbers, which the model does not let through"
            )
        made = " < ".join(capture.loss_made_by)
        if outcome.loss is None and made:
            return _noted(found, f"model and gradients are finite; the loss was made by {made}")
        return found
    if at_rest.where == "input":
        return replace(at_rest, notes=found.notes)
    if has_bad_outputs:
        return _of_event(found, "output", trace)
    if has_bad_loss:
        return _of_event(found, "loss", trace)
    return _of_event(found, "backward", trace, bad_gradients)


def _of_event(found: HuntResult, where: Any, trace: Trace, gradients: Sequence[str] = ()) -> HuntResult:
    event, module = trace.first(is_backward=where == "backward"), trace.module
    if event is None:
        named = "" if module is None else module.name
        return replace(found, where=where, module=named, tensors=tuple(gradients)[:MAX_NAMED])
    notes = found.notes
    later = next((e for e in trace.events if not e.is_first and e.module and e.is_backward is event.is_backward), event)
    if event.is_first and later is not event:
        notes = (*notes, f"then {later.operation} in {later.module} made NaN of the infinities")
    return replace(
        found,
        where=where,
        module="" if where == "loss" else event.module,
        module_kind="" if where == "loss" else event.module_kind,
        operation=event.operation,
        line=event.line,
        num_bad=event.num_bad,
        largest=event.largest,
        dtype=event.dtype,
        samples=(event.rows or (module.rows if module is not None else ()))[:MAX_NAMED],
        tensors=tuple(gradients)[:MAX_NAMED],
        num_tensors=len(gradients),
        notes=notes,
    )


def _search(
    kept: RestoredModel, again: Again, device: torch.device, found: HuntResult, has_time: Callable[[], bool]
) -> tuple[int, ...]:
    """The samples that are bad alone, by running halves; none if all are."""
    count = found.num_samples

    def is_part_bad(rows: range) -> bool | None:
        if not has_time():
            return None
        call = again.call
        part = Call(
            args=part_of(call.args, rows, count),
            kwargs=part_of(call.kwargs, rows, count),
            random=call.random,
            autocast=call.autocast,
            is_training=call.is_training,
        )
        kept.put_back()
        try:
            with Alone():  # type: ignore[no-untyped-call]  # torch gives no types
                outcome = forward(kept.model, Again(part, again.loss_fn, part_of(again.batch, rows, count)), device)
                if found.where == "backward" and outcome.root is not None:
                    return any(is_bad(gradient) for gradient in backward(kept.model, outcome.root).values())
            ends = outcome.outputs if found.where == "output" else (outcome.loss,)
            return any(is_bad(tensor) for tensor in ends if tensor is not None)
        except Exception:  # noqa: BLE001 - a part of a batch need not be a batch to the user's code
            return None

    if count < 2:
        return ()
    samples = search(is_part_bad, count)
    return samples if len(samples) < count else ()


def _noted(found: HuntResult, note: str) -> HuntResult:
    return found if not note or note in found.notes else replace(found, notes=(*found.notes, note))
