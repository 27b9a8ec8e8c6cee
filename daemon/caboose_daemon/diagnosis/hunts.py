"""Reads what the ranks' NaN hunts found about an incident: place, operation and samples of the first bad number.

A hunt is an event of the run (`kind="hunt"`), with the fields of the agent's result as plain values.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from caboose_daemon.steps.settings import as_count, as_number, as_text
from caboose_wire import Event

KIND = "hunt"
ADJACENT = 10
"""Steps by which a rule's onset may be later than the rank's."""
UNDEFINED = frozenset(
    {
        *("log", "log2", "log10", "log1p", "xlogy", "logit", "lgamma", "log_softmax", "binary_cross_entropy"),
        *("div", "reciprocal", "sqrt", "rsqrt", "pow", "norm", "linalg_vector_norm", "std", "var"),
        *("asin", "acos", "atanh", "acosh"),
    }
)
"""Operations that are undefined, or have no finite slope, for some inputs; their backwards count as well."""


@dataclass(frozen=True)
class Hunted:
    """What one rank found."""

    step: int
    rank: int
    where: str
    summary: str
    operation: str = ""
    line: str = ""
    samples: str = ""
    batch: int | None = None
    dtype: str = ""
    largest: float | None = None
    num_tensors: int = 0

    @property
    def is_undefined(self) -> bool:
        """Whether the operation is undefined for some inputs: a logarithm, a root, a division."""
        plain = re.sub(r"Backward\d*$", "", self.operation).lower()
        return plain.rstrip("_") in UNDEFINED

    @property
    def is_run(self) -> bool:
        """Whether it was found by running the batch, so that inputs and weights were finite."""
        return self.where in ("output", "loss", "backward")


def of(events: Iterable[Event], first: int, last: int) -> Iterator[Hunted]:
    """What was found since the onset; bad inputs first, then by rank."""
    found = [_read(event) for event in events if event.kind == KIND]
    near = [hunt for hunt in found if hunt is not None and first - ADJACENT <= hunt.step <= last]
    yield from sorted(near, key=lambda hunt: (hunt.where != "input", hunt.rank))


def _read(event: Event) -> Hunted | None:
    fields = event.fields
    where, summary = as_text(fields.get("where")), as_text(fields.get("summary"))
    if not where or not summary:
        return None
    return Hunted(
        step=as_count(fields.get("batch_step")) or event.step,
        rank=as_count(fields.get("rank")) or 0,
        where=where,
        summary=summary,
        operation=as_text(fields.get("operation")),
        line=as_text(fields.get("line")),
        samples=as_text(fields.get("samples")),
        batch=as_count(fields.get("batch")),
        dtype=as_text(fields.get("dtype")),
        largest=as_number(fields.get("largest")),
        num_tensors=as_count(fields.get("num_tensors")) or 0,
    )
