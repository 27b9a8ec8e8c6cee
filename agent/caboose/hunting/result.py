"""The result of a hunt: the place, the operation, the samples; or why it was not made."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from caboose_wire.fields import Scalar

Where = Literal["", "input", "parameter", "buffer", "output", "loss", "backward"]
"""Where the first bad number was: in the batch, in the weights, in a buffer that the forward reads, in what a module
put out, in the loss after the model, or in a gradient though everything before it was finite; empty where nothing was
found."""

MAX_SHOWN = 8
MAX_TEXT = 256
"""Of an event's field."""


@dataclass(frozen=True, slots=True)
class HuntResult:
    """One rank's result."""

    step: int
    """The step whose batch was run again."""
    rank: int = 0
    where: Where = ""
    module: str = ""
    """Its name in the model; "(the model itself)" for the outermost."""
    module_kind: str = ""
    operation: str = ""
    """The first that made a bad number from good ones: exp, log, SqrtBackward0, ..."""
    line: str = ""
    """In the user's code: file, line and function."""
    tensors: tuple[str, ...] = ()
    """Inputs or parameters that are not finite, the first few."""
    num_tensors: int = 0
    num_bad: int = 0
    """Elements that are not finite, there or in the operation's output."""
    samples: tuple[int, ...] = ()
    """Places in the batch, from 0, the first few."""
    num_samples: int = 0
    """Of the batch."""
    batch: int | None = None
    """The index of the batch, where a loader is watched."""
    epoch: int | None = None
    largest: float | None = None
    """The largest magnitude in the operation's inputs."""
    dtype: str = ""
    weights_of: int | None = None
    """The snapshot whose weights were used; None for the current ones."""
    notes: tuple[str, ...] = ()
    """What was not checked, and what else was found."""
    declined: str = ""
    """Why the batch was not run again; empty if it was, or if that was not needed."""
    took_seconds: float = field(default=0.0, compare=False)

    @property
    def is_found(self) -> bool:
        """Whether something was found."""
        return bool(self.where)

    @property
    def summary(self) -> str:
        """One line."""
        rest = {"": self._nothing, "input": self._input, "parameter": self._parameter, "buffer": self._buffer}
        found = rest.get(self.where, self._run)()
        return f"rank {self.rank}, step {self.step}: {found}"

    def _nothing(self) -> str:
        return f"declined: {self.declined}" if self.declined else "no bad number came up again"

    def _input(self) -> str:
        return f"{_listed(self.tensors, self.num_tensors)} of {self._of_batch()} holds NaN or infinity{self._places()}"

    def _parameter(self) -> str:
        return f"{_listed(self.tensors, self.num_tensors)}: {self.num_bad} elements of the weights are not finite"

    def _buffer(self) -> str:
        return f"{_listed(self.tensors, self.num_tensors)}: {self.num_bad} elements of the buffer are not finite"

    def _run(self) -> str:
        place = {"output": "the output", "loss": "the loss", "backward": "the backward"}[self.where]
        if self.module:
            place = f"{place.removeprefix('the ')} of {self.module}"
        kind = f" ({self.module_kind})" if self.module_kind else ""
        operation = f", by {self.operation}" if self.operation else ""
        size = f" on values up to {self.largest:.3g} in {self.dtype}" if self.largest is not None else ""
        line = f", {self.line}" if self.line else ""
        return f"{place}{kind}{operation}{size}{line}{self._places()}"

    def _of_batch(self) -> str:
        return "the batch" if self.batch is None else f"batch {self.batch}"

    def _places(self) -> str:
        if not self.samples:
            return ""
        word = "sample" if len(self.samples) == 1 else "samples"
        return f", in {word} {_listed(self.samples, len(self.samples))} of {self.num_samples}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "is_found": self.is_found, "summary": self.summary}

    def fields(self) -> dict[str, Scalar]:
        """For an event: plain values, bounded, without empty ones."""
        samples = ",".join(map(str, self.samples[:MAX_SHOWN]))
        fields: dict[str, Scalar] = {
            "summary": self.summary,
            "batch_step": self.step,
            "rank": self.rank,
            "where": self.where,
            "module": self.module,
            "module_kind": self.module_kind,
            "operation": self.operation,
            "line": self.line,
            "tensors": ", ".join(self.tensors[:MAX_SHOWN]),
            "num_tensors": self.num_tensors or None,
            "num_bad": self.num_bad or None,
            "samples": samples,
            "num_samples": self.num_samples or None,
            "batch": self.batch,
            "epoch": self.epoch,
            "largest": self.largest,
            "dtype": self.dtype,
            "weights_of": self.weights_of,
            "notes": "; ".join(self.notes),
            "declined": self.declined,
            "seconds": round(self.took_seconds, 3),
        }
        fields = {name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in fields.items()}
        return {name: value for name, value in fields.items() if value not in ("", None)}

    def __str__(self) -> str:
        weights = "the current weights" if self.weights_of is None else f"the snapshot of step {self.weights_of}"
        lines = [self.summary, f"  run on {weights}, in {self.took_seconds:.2f} s"]
        if self.where and self.declined:
            lines.append(f"  the batch was not run again: {self.declined}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def _listed(items: tuple[Any, ...], total: int) -> str:
    shown = ", ".join(map(str, items[:MAX_SHOWN]))
    return f"{shown} and {total - MAX_SHOWN} more" if total > MAX_SHOWN else shown
