"""One step's record: filled on the training thread, turned into a report by the sender.

Design
------
There are two records, beside the rows of thin steps (`thin_run`). A `StepRecord` can have anything. Most steps of a run
of short ones have nothing but a loss on the host, and little time: a `PlainRecord` is one tuple of what is known, and
the sender does everything else.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from caboose.observe.phases import WAIT, Times, folded
from caboose.tensors.scalars import whole
from caboose_wire import Batch, Clipping, Hello, Message, Mode, Phases, Scaler, StepReport
from caboose_wire.fields import Float32
from caboose_wire.messages import LAYER_ARRAYS, MODULE_ARRAYS

MISSING = np.float32(-1.0)
"""For a row without a value: norms and shares are never negative, and NaN is a value."""

OF_ALL_LAYERS = ("local_grad_norm", "layer_fingerprint")
"""Arrays that differ between ranks, so each rank reports them for every layer."""

OF_THE_BATCH = {
    "num_bad": "batch_bad",
    "lowest": "batch_low",
    "highest": "batch_high",
    "mean": "batch_mean",
    "num_bad_targets": "target_bad",
    "target_variance": "target_variance",
    "commonest_share": "target_share",
    "target_entropy": "target_entropy",
}
"""Fields of the wire's Batch, by the names of their values."""

SHORT_SECONDS = 0.02
"""Steps below this travel several to a message."""

Values = dict[str, tuple[Sequence[int], Float32]]


OnBadNumber = Callable[[StepReport, Any], StepReport]
"""Called on the sender's thread with a report that has a loss or norm that is not finite, and a reference to its batch.
"""


class PlainRecord(NamedTuple):
    """One step with nothing but a loss, rates and times."""

    attempt: int
    seq: int
    step: int
    model_step: int
    time: float
    loss: float | None
    lr: tuple[float, ...]
    mode: Mode | None
    times: Times
    agent_seconds: float
    cadences: tuple[int, int, int]
    """Steps between samples, norms and phases."""
    num_scheduler_steps: int | None
    batch: Any
    """A batches.BatchPlace, or None."""
    held: Any
    num_samples: Any
    num_tokens: Any
    on_bad_number: OnBadNumber

    @property
    def is_short(self) -> bool:
        """Whether a message for each such step would be too many."""
        return self.times.total < SHORT_SECONDS

    def is_ready(self) -> bool:
        """Always: its values are on the host."""
        return True

    def message(self, num_dropped: int) -> StepReport:
        """The report; called on the sender's thread."""
        loss = self.loss
        sample_every, norm_every, phase_every = self.cadences
        report = StepReport(
            attempt=self.attempt,
            seq=self.seq,
            step=self.step,
            model_step=self.model_step,
            time=self.time,
            loss=loss,
            num_samples=None if self.num_samples is None else whole(self.num_samples),
            num_tokens=None if self.num_tokens is None else whole(self.num_tokens),
            lr=self.lr,
            phases=self.times.phases(),
            agent_seconds=self.agent_seconds,
            num_dropped=num_dropped,
            sample_every=sample_every,
            norm_every=norm_every,
            phase_every=phase_every,
            num_scheduler_steps=self.num_scheduler_steps,
            batch=None if self.batch is None else wire_batch(self.batch),
            mode=self.mode,
        )
        is_bad = loss is not None and not math.isfinite(loss)
        return self.on_bad_number(report, self.held) if is_bad else report


def wire_batch(place: Any) -> Batch | None:
    """A batches.BatchPlace as it is reported; called on the sender's thread."""
    from caboose.observe.batches import describe

    return describe(place)


@dataclass(slots=True)
class StepRecord:
    """One step: plain values, and device values that may still be on their way, as `seen`."""

    fields: dict[str, Any]
    """Fields of the report that are known already, by name."""
    num_samples: Any
    num_tokens: Any
    """Counts, or tensors on a device that hold them."""
    times: Times
    num_layers: int
    num_modules: int
    part: tuple[int, int]
    """This rank's rows of the layer table."""
    batch: Any
    """A batches.BatchPlace, or None."""
    held: Any
    """A weak reference to its batch."""
    device_phases: Any
    """The device's marks of the phases (`readback.Marks`), if it has a clock."""
    seen: Any  # an observer.ObservedStep; naming its type here would import torch
    on_bad_number: OnBadNumber

    @property
    def is_short(self) -> bool:
        """As of a PlainRecord."""
        return self.times.total < SHORT_SECONDS

    def is_ready(self) -> bool:
        """Whether the values have arrived; the marks of the phases were recorded before them."""
        return self.seen.vector is None or self.seen.vector.is_ready()

    def message(self, num_dropped: int) -> StepReport:
        """The report; called on the sender's thread."""
        seen = self.seen
        values: Values = seen.vector.read() if seen.vector is not None else {}
        scale = _scalar(values, "scale")
        _unscale(values, _scalar(values, "kept_scale") or scale or 1.0, is_clip_scaled=seen.is_clip_scaled)
        arrays, slices = self._arrays(values)
        loss = _scalar(values, "loss")
        part_losses = _part_losses(values, seen.part_losses)
        report = StepReport(
            **self.fields,
            loss=part_losses[0] if part_losses else seen.loss if loss is None else loss,
            part_losses=part_losses,
            num_samples=whole(self.num_samples),
            num_tokens=whole(self.num_tokens),
            lr=seen.lr,
            phases=self._phases(),
            local_grad_norm=_total(values, "local_grad_norm"),
            clipping=self._clipping(values),
            scaler=None if scale is None else Scaler(scale, self._num_skipped(values)),
            batch=self._batch(values),
            mode=seen.mode,
            fingerprint=_fingerprint(values),
            num_dropped=num_dropped,
            is_sampled=seen.is_sampled,
            slices=slices,
            arrays=arrays,
        )
        judged = (report.loss, _total(values, "grad_norm"), *part_losses)
        is_bad = any(v is not None and not math.isfinite(v) for v in judged)
        return self.on_bad_number(report, self.held) if is_bad else report

    def _arrays(self, values: Values) -> tuple[dict[str, Float32], dict[str, tuple[int, int]]]:
        arrays: dict[str, Float32] = {}
        slices: dict[str, tuple[int, int]] = {}
        for name, (rows, found) in values.items():
            if name in LAYER_ARRAYS:
                first, last = self.part if name not in OF_ALL_LAYERS else (0, self.num_layers)
                arrays[name] = _spread(found, rows, first, last)
                slices[name] = (first, 1)
            elif name in MODULE_ARRAYS:
                arrays[name] = _spread(found, rows, 0, self.num_modules)
        if "activation_std" in arrays:
            order = values["activation_std"][0]
            arrays["activation_order"] = _spread(np.arange(len(order), dtype=np.float32), order, 0, self.num_modules)
        return arrays, slices

    def _phases(self) -> Phases:
        """The host's times; or the device's, if it has a clock, since the host runs ahead of it."""
        if not self.device_phases:
            return self.times.phases()
        from caboose.tensors.readback import seconds_by_phase

        times = seconds_by_phase(self.device_phases)
        waits = {name: seconds for name, seconds in times.items() if name.endswith(WAIT)}
        for name, seconds in waits.items():
            del times[name]
            phase = name.removesuffix(WAIT)
            times[phase] = times.get(phase, 0.0) + seconds
        known = {name: seconds for name, seconds in folded(times).items() if name != "other"}
        for phase in ("forward", "backward"):
            if waits:
                known[f"{phase}_wait"] = waits.get(phase + WAIT, 0.0)
        return msgspec.structs.replace(self.times.phases(), **known)

    def _clipping(self, values: Values) -> Clipping | None:
        clipped = self.seen.clipped
        total = _total(values, "clip_total_norm")
        if clipped.max_norm is None and total is None:
            return None
        return Clipping(clipped.max_norm, total, self.seen.is_clip_scaled)

    def _num_skipped(self, values: Values) -> int:
        return (self.seen.num_skipped or 0) + int(_scalar(values, "num_fused_skipped") or 0)

    def _batch(self, values: Values) -> Batch | None:
        batch = None if self.batch is None else wire_batch(self.batch)
        found = {field: value for field, name in OF_THE_BATCH.items() if (value := _scalar(values, name)) is not None}
        if not found:
            return batch
        counts = {field: int(value) for field, value in found.items() if field.startswith("num_")}
        return msgspec.structs.replace(Batch(index=None) if batch is None else batch, **found | counts)


@dataclass(slots=True)
class Note:
    """A complete message, in the same queue so that it keeps its place among the steps."""

    content: Message

    @property
    def is_short(self) -> bool:
        """It is no step."""
        return False

    @property
    def hello(self) -> Hello | None:
        """The new Hello, if it is one."""
        return self.content if isinstance(self.content, Hello) else None

    def is_ready(self) -> bool:
        """Always: it holds no device values."""
        return True

    def message(self, num_dropped: int) -> Message:
        """The message itself."""
        return self.content


def _scalar(values: Values, name: str) -> float | None:
    found = values.get(name)
    return None if found is None else float(found[1][0])


def _part_losses(values: Values, plain: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """Those of the vector in their places among those that were plain numbers; empty for a job without parts."""
    if "part_loss" not in values:
        return plain
    losses = list(plain)
    for part, loss in zip(*values["part_loss"], strict=True):
        losses[part] = float(loss)
    return tuple(losses)


def _unscale(values: Values, scale: float, *, is_clip_scaled: bool) -> None:
    """Divides by the gradient scaler's scale what was read with it."""
    for name in ("scaled_grad_norm", "local_grad_norm", *(("clip_total_norm",) if is_clip_scaled else ())):
        if name in values:
            rows, found = values[name]
            values[name] = (rows, found / np.float32(scale))
    if "scaled_grad_norm" in values:
        rows, found = values.pop("scaled_grad_norm")
        others, unscaled = values.get("grad_norm", ((), np.empty(0, np.float32)))
        values["grad_norm"] = ([*others, *rows], np.concatenate([unscaled, found]))


def _spread(found: Float32, rows: Sequence[int], first: int, last: int) -> Float32:
    spread = np.full((last - first, *found.shape[1:]), MISSING, dtype=np.float32)
    spread[np.asarray(rows) - first] = found
    return spread


def _total(values: Values, name: str) -> float | None:
    if name not in values:
        return None
    norms = values[name][1].astype(np.float64)
    return math.sqrt(norms @ norms)


def _fingerprint(values: Values) -> int | None:
    if "fingerprint" not in values:
        return None
    words = values["fingerprint"][1]
    return sum(int(word) << (16 * i) for i, word in enumerate(words))
