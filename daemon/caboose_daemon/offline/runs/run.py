"""A run for compare, report and guided diagnosis: curves, validations, incidents, settings.

Design
------
Plain columns and the JSON shapes of the API, so that a daemon, a journal file and a log of another tool give the same
type; what a source does not hold is empty, and listed in `cannot_see`. A restarted run has repeated steps: `surviving`
keeps, for each step, the attempt that continued from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.steps.settings import number
from caboose_wire.fields import Scalar

Floats = NDArray[np.float64]
Json = dict[str, Any]
Source = Literal["daemon", "journal", "log"]
PHASES = ("data_seconds", "forward_seconds", "loss_seconds", "backward_seconds", "optimizer_seconds")
RATES = ("tokens_per_second", "samples_per_second")
"""Throughput, the preferred one first."""
CURVES = (
    *("loss", "loss_min", "loss_max", "grad_norm", "grad_norm_min", "grad_norm_max", "lr"),
    *("step_seconds", "step_seconds_max", *PHASES),
    *(f"{rate}{end}" for rate in RATES for end in ("", "_min", "_max")),
)
ACCUMULATION = (
    "gradient_accumulation_steps",
    "accumulate_grad_batches",
    "accumulation_steps",
    "grad_accum_steps",
    "grad_accum",
)
"""Setting names of trainers for the number of batches per optimizer step."""
NOT_FINITE = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


class RunError(Exception):
    """The run cannot be read; the message is one line with the way out."""


@dataclass(frozen=True)
class Run:
    """One run; rows are in the order of the steps taken."""

    name: str
    source: Source
    where: str
    """The daemon's address or the file."""
    attempts: NDArray[np.int64]
    steps: NDArray[np.int64]
    curves: Mapping[str, Floats]
    """Those of `CURVES` with a value; NaN where not reported, or not finite."""
    num_bad: NDArray[np.int64]
    """Steps of each row whose numbers were not finite."""
    num_bad_losses: NDArray[np.int64] | None = None
    """Those of them with a loss that was not; None if the same."""
    steps_per_row: int = 1
    validations: tuple[tuple[int, float, Mapping[str, float]], ...] = ()
    """Step, loss and other numbers of each evaluation, in order."""
    updates: tuple[tuple[int, float], ...] = ()
    """Step and typical update-to-weight ratio of each sample, in order."""
    layer_norms: Mapping[str, float] = field(default_factory=dict)
    """The last gradient norm of each layer, in the order of the model, where it is known."""
    incidents: tuple[Json, ...] = ()
    """As the API shapes them, the first opened first."""
    found: tuple[Incident, ...] = ()
    """The same as the daemon keeps them, for another diagnosis."""
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    """Hyper-parameters, facts of model and data, and the user's own config, by name."""
    state: str = "log"
    detail: Json | None = None
    """The API's detail of the job; None for a log."""
    decisions: tuple[Json, ...] = ()
    ledger: tuple[Json, ...] = ()
    latest_sample: Json | None = None
    cannot_see: tuple[str, ...] = ()

    @cached_property
    def surviving(self) -> NDArray[np.bool_]:
        """The rows that a later attempt did not repeat."""
        keep = np.ones(len(self.steps), np.bool_)
        lowest = np.iinfo(np.int64).max
        for row in range(len(self.steps) - 1, -1, -1):
            if self.steps[row] >= lowest:
                keep[row] = False
            else:
                lowest = int(self.steps[row])
        return keep

    def curve(self, name: str) -> tuple[NDArray[np.int64], Floats]:
        """Steps and finite values of a curve, repeated steps once."""
        values = self.curves.get(name)
        if values is None:
            return np.zeros(0, np.int64), np.zeros(0)
        keep = self.surviving & np.isfinite(values)
        return self.steps[keep], values[keep]

    def losses(self) -> tuple[NDArray[np.int64], Floats]:
        """Steps and reported losses, NaN where not finite; repeated steps once."""
        values = self.curves.get("loss", np.full(len(self.steps), np.nan))
        num_bad = self.num_bad if self.num_bad_losses is None else self.num_bad_losses
        keep = self.surviving & (np.isfinite(values) | (num_bad > 0))
        return self.steps[keep], values[keep]

    @property
    def last_step(self) -> int:
        """The last step; 0 without steps."""
        return int(self.steps[-1]) if len(self.steps) else 0

    @property
    def num_attempts(self) -> int:
        """How often it was started or rolled back."""
        return len(np.unique(self.attempts))

    def setting(self, name: str) -> float | None:
        """A setting that is a number."""
        return number(name, self.settings)

    @property
    def samples_per_step(self) -> float | None:
        """Samples of all ranks in one optimizer step; None if unknown.

        From the steps' own reports; otherwise the loader's batch, times ranks, times the accumulated batches, if a
        setting of a usual name gives their number.
        """
        rates, seconds = self.curves.get("samples_per_second"), self.curves.get("step_seconds")
        if rates is not None and seconds is not None and np.isfinite(rates * seconds).any():
            return round(float(np.nanmedian(rates * seconds)))
        batch, world = self.setting("batch_size"), self.setting("world")
        accumulated = next((value for value in map(self.setting, ACCUMULATION) if value), 1.0)
        return batch * (world or 1.0) * accumulated if batch else None


def numbers(values: list[Any]) -> Floats:
    """A column of the API's JSON as floats; None is NaN."""
    return np.array([np.nan if v is None else NOT_FINITE.get(v, np.nan) if isinstance(v, str) else v for v in values])
