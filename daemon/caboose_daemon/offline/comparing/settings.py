"""Which settings differ between runs.

Design
------
A setting that only some runs report is unknown, not different, and is listed separately. Settings that follow from
others (batches from batch size, trained parameters from all parameters) or change no result (device, wrapper) are shown
but never taken for a cause. The batch is compared as a whole: 8 ranks of 32, 4 of 64, and 4 of 32 with gradients
accumulated twice are one batch size.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from caboose_daemon.offline.comparing.measures import Measures
from caboose_daemon.offline.runs.run import ACCUMULATION, Run
from caboose_wire.fields import Scalar

FOLLOWS = frozenset(
    {"world", "wrapper", "device", "num_batches", "num_trainable", "num_workers", "batch_size", "seed", "job", "name"}
    | {"per_device_train_batch_size", *ACCUMULATION}
)
"""Shown if they differ, but not a cause of different results (the batch as a whole is)."""
SCALE = frozenset({"num_classes", "vocab_size", "dataset", "dataset_name", "loss", "criterion", "tokenizer", "task"})
"""Settings that change the scale of the loss."""
BATCH, RATE = "batch of all ranks", "peak lr"
OF_CURVES = frozenset({BATCH, RATE})
""""Settings" that are read from the curves."""


@dataclass(frozen=True)
class RunSettings:
    """The settings of several runs, side by side."""

    tables: tuple[Mapping[str, Scalar], ...]

    @cached_property
    def names(self) -> list[str]:
        """Every setting that any run reports."""
        return list(dict.fromkeys(name for table in self.tables for name in table))

    @cached_property
    def differing(self) -> list[str]:
        """Those with two or more values among the runs that report them."""
        return [name for name in self.names if self._num_values(name) > 1]

    @cached_property
    def causes(self) -> list[str]:
        """Those that may cause different results."""
        return [name for name in self.differing if name not in FOLLOWS]

    @cached_property
    def unknown(self) -> list[str]:
        """Those that some runs do not report."""
        return [name for name in self.names if any(name not in table for table in self.tables)]

    @property
    def num_equal(self) -> int:
        """Number with the same value in all runs."""
        return len(self.names) - len({*self.differing, *self.unknown})

    def apart(self, one: int, other: int) -> list[str]:
        """The possible causes in which two runs differ, or in which one of them is unknown."""
        return [name for name in self.causes if not same(self.tables[one].get(name), self.tables[other].get(name))]

    def is_known(self, place: int) -> bool:
        """Whether anything is known of a run beside what its curves show."""
        return bool(set(self.tables[place]) - OF_CURVES)

    def one_sided(self, one: int, other: int) -> list[str]:
        """The possible causes that only one of two runs reports: whether they differ is not known."""
        names = set(self.tables[one]) ^ set(self.tables[other])
        return sorted(names - FOLLOWS - OF_CURVES)

    def _num_values(self, name: str) -> int:
        values = [table[name] for table in self.tables if name in table]
        return sum(not any(same(value, other) for other in values[:i]) for i, value in enumerate(values))


def side_by_side(runs: Sequence[Run], measures: Sequence[Measures]) -> RunSettings:
    """The runs' settings, with batch and learning rate from their curves."""
    tables = []
    for run, numbers in zip(runs, measures, strict=True):
        table = {name: value for name, value in run.settings.items() if value is not None}
        if numbers.samples_per_step is not None:
            table[BATCH] = int(numbers.samples_per_step)
        if numbers.lr_peak is not None:
            table[RATE] = float(f"{numbers.lr_peak:.2g}")  # the peak may fall between two rows of a log
            for name in ("lr", "learning_rate", "base_lr"):
                table.pop(name, None)
        tables.append(table)
    return RunSettings(tuple(tables))


def same(one: Scalar, other: Scalar) -> bool:
    """Whether two settings are equal, within rounding."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6) or (math.isnan(one) and math.isnan(other))
    return one == other
