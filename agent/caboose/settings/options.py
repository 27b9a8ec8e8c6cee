"""The options of `attach` that come in groups: `Rollback`, `Snapshots`, `Checkpoints` and `Sampling`.

Each checks its own values; an error names the value and what to give instead.
"""

import os
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, get_args

from caboose_wire.rollback import RollbackMode

MODES: tuple[RollbackMode, ...] = ("off", "advise", "auto")
"""What may be done to a run, from the least to the most."""

LrPolicy = Literal["keep", "rewind"]
SkipMode = Literal["nonfinite", "outlier"]


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """Copies of the training state in host memory, which a rollback restores."""

    every: int = 10
    """Steps between two snapshots; more where they would cost over half of the agent's budget."""
    keep: int = 3
    """So many are kept, and one more: the newest, and older ones that are spaced ever wider."""
    max_host_gb: float | None = None
    """Memory that the snapshots of all ranks on this host may take; None: a quarter of what is free."""
    dedupe: bool = False
    """Divides each snapshot among the ranks of a replicated model, instead of a full copy on each."""

    def __post_init__(self) -> None:
        _check_whole("Snapshots", "every", self.every, at_least=1)
        _check_whole("Snapshots", "keep", self.keep, at_least=1)
        if self.max_host_gb is not None and not (_is_number(self.max_host_gb) and self.max_host_gb > 0):
            raise ValueError(f"Snapshots(max_host_gb={self.max_host_gb!r}): give a number of GB above 0, or nothing")


@dataclass(frozen=True)
class Rollback:
    """What Caboose may do to the run."""

    mode: RollbackMode = "advise"
    """`off`; `advise`: only report what would be done; `auto`: act, where the daemon is set to `auto` too."""
    _: KW_ONLY
    budget: int = 3
    """Rollbacks allowed in 24 hours."""
    cooldown_steps: int = 200
    """The least number of steps between two rollbacks, and between two changes of the learning rate."""
    lr: LrPolicy = "keep"
    """After a rollback the schedule continues (`keep`) or goes back with the weights (`rewind`)."""
    snapshots: Snapshots = field(default_factory=Snapshots)
    """Used with `auto` only."""
    skip_step: SkipMode | None = None
    """Skips updates whose gradient norm is not finite (`nonfinite`), or is an `outlier` too; in every mode. The norm is
    the one of `clip_grad_norm_`; after three steps without it this is off, with a warning."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"Rollback({self.mode!r}): use one of {', '.join(map(repr, MODES))}")
        _check_whole("Rollback", "budget", self.budget, at_least=0)
        _check_whole("Rollback", "cooldown_steps", self.cooldown_steps, at_least=0)
        if self.lr not in get_args(LrPolicy):
            raise ValueError(f"Rollback(lr={self.lr!r}): use 'keep' or 'rewind'")
        if self.skip_step is not None and self.skip_step not in get_args(SkipMode):
            raise ValueError(f"Rollback(skip_step={self.skip_step!r}): use 'nonfinite' or 'outlier', or leave it out")
        if not isinstance(self.snapshots, Snapshots):
            raise TypeError(f"Rollback(snapshots={self.snapshots!r}): give caboose.Snapshots(...)")

    def without_rewind(self) -> "Rollback":
        """For a framework that owns the schedule; ValueError where `rewind` was asked for."""
        if self.lr == "rewind":
            raise ValueError("Rollback(lr='rewind'): the Trainer's step counter cannot go back; use lr='keep'")
        return self


@dataclass(frozen=True)
class Checkpoints:
    """Where `monitor.checkpoint()` writes."""

    directory: "str | os.PathLike[str]"
    """Shared by all ranks; one run writes there."""
    _: KW_ONLY
    keep: int = 3
    """The newest so many are kept."""
    in_background: bool = False
    """Training continues while a thread writes."""

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str | os.PathLike) or not os.fspath(self.directory):
            raise TypeError(f"Checkpoints({self.directory!r}): give a directory")
        _check_whole("Checkpoints", "keep", self.keep, at_least=1)


@dataclass(frozen=True)
class Sampling:
    """How often a step is sampled: its activations, weights and updates summarised, beside the norms of every step."""

    every: int | None = None
    """Steps between two samples; None: CABOOSE_SAMPLE_EVERY, or 100."""
    _: KW_ONLY
    overhead_budget: float | None = None
    """The agent's share of a step; above it, it samples less often. 1 is no limit. None: CABOOSE_OVERHEAD_BUDGET, or
    0.01."""
    compiled: bool | None = None
    """Activations inside compiled graphs as well, which makes torch compile each of them a second time. None:
    CABOOSE_SAMPLE_COMPILED, or not."""

    def __post_init__(self) -> None:
        if self.compiled is not None and not isinstance(self.compiled, bool):
            raise ValueError(f"Sampling(compiled={self.compiled!r}): use True or False")
        if self.every is not None:
            _check_whole("Sampling", "every", self.every, at_least=1)
        if self.overhead_budget is not None and not (
            _is_number(self.overhead_budget) and 0 < self.overhead_budget <= 1
        ):
            raise ValueError(
                f"Sampling(overhead_budget={self.overhead_budget!r}): give a share of a step, above 0 and at most 1; "
                "0.01 is one percent"
            )


REMOVED = {
    "checkpoint_async": "checkpoints=caboose.Checkpoints(directory, in_background=True)",
    "checkpoint_dir": "checkpoints=directory",
    "checkpoint_keep": "checkpoints=caboose.Checkpoints(directory, keep=3)",
    "lr_policy": 'rollback=caboose.Rollback("auto", lr="rewind")',
    "max_host_gb": 'rollback=caboose.Rollback("auto", snapshots=caboose.Snapshots(max_host_gb=8))',
    "overhead_budget": "sampling=caboose.Sampling(overhead_budget=0.01)",
    "rollback_budget": 'rollback=caboose.Rollback("auto", budget=3)',
    "rollback_cooldown": 'rollback=caboose.Rollback("auto", cooldown_steps=200)',
    "sample_every": "sampling=100",
    "skip_step": 'rollback=caboose.Rollback("advise", skip_step="nonfinite")',
    "snapshot_dedupe": 'rollback=caboose.Rollback("auto", snapshots=caboose.Snapshots(dedupe=True))',
    "snapshot_every": 'rollback=caboose.Rollback("auto", snapshots=caboose.Snapshots(every=10))',
    "snapshot_keep": 'rollback=caboose.Rollback("auto", snapshots=caboose.Snapshots(keep=3))',
}
"""Arguments that `attach` no longer takes, and how each is written now."""


def refuse_unknown(arguments: dict[str, Any]) -> None:
    """TypeError for arguments that `attach` does not take."""
    for name in arguments:
        if name in REMOVED:
            raise TypeError(f"attach({name}=...) is now written attach({REMOVED[name]})")
        raise TypeError(f"attach() got an unexpected keyword argument {name!r}")


def as_rollback(given: Any) -> Rollback:
    if isinstance(given, Rollback):
        return given
    if given not in MODES:
        modes = ", ".join(map(repr, MODES))
        raise ValueError(f"attach(rollback={given!r}): use one of {modes}, or caboose.Rollback(...)")
    return Rollback(given)


def as_checkpoints(given: Any) -> Checkpoints | None:
    return given if given is None or isinstance(given, Checkpoints) else Checkpoints(given)


def as_sampling(given: Any) -> Sampling:
    return given if isinstance(given, Sampling) else Sampling(given)


def as_schedulers(given: Any, call: str) -> list[Any]:
    """One LR scheduler, several or none, as a list; TypeError names `call`."""
    if given is None:
        return []
    is_one = not isinstance(given, list | tuple)
    schedulers = [given] if is_one else list(given)
    for number, scheduler in enumerate(schedulers):
        if not hasattr(scheduler, "state_dict"):
            which = f"got {type(scheduler).__name__}" if is_one else f"element {number} is a {type(scheduler).__name__}"
            raise TypeError(f"{call}(scheduler=...): expected an LR scheduler or a list of them, {which}")
    return schedulers


def _check_whole(owner: str, name: str, value: Any, *, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{owner}({name}={value!r}): give a whole number of at least {at_least}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
