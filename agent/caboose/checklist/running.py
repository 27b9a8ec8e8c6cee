"""`caboose.preflight`: runs the checks on the user's model, loss and data, and restores everything.

Design
------
Every rank of a DDP or FSDP2 model runs the checks on its own data, with gradients averaged as in the run; the worst
verdict of any rank counts, and names the rank. Everything is restored between two checks, so their order does not
matter. A check that raises is a failed check; Ctrl-C restores everything and is raised. What raises in the very first
forward and backward would raise in all checks: it is reported once, and the checks that need a step are skipped.
"""

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from caboose.checklist.catalogue import CHECKS
from caboose.checklist.flight import Flight
from caboose.checklist.report import Line, Report
from caboose.checklist.verdict import ORDER, Check, CheckResult, failed, skipped
from caboose.trials.batches import Split
from caboose.trials.progress import ProgressLine
from caboose.trials.ranks import one_line
from caboose.trials.sources import BatchSource
from caboose.trials.trial import LossFunction, Trial

WITHOUT_STEP = (
    "inputs",
    "targets",
    "overlap",
    "validation_repeatable",
    "initial_weights",
    "scheduler_state",
    "lr_logged",
)
"""Checks that need no step."""


def preflight(
    model: torch.nn.Module,
    loss_fn: LossFunction,
    loader: Any,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    validation_loader: Any = None,
    test_loader: Any = None,
    scheduler: Any = None,
    num_classes: int | None = None,
    ignore_index: int | None = None,
    checkpoint: Any = None,
    split: Split | None = None,
    num_batches: int = 8,
    overfit_steps: int = 100,
    overlap_seconds: float = 10.0,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    progress: bool | None = None,
) -> Report:
    """Checks model, loss, data and optimizer before a run, on every rank, before `attach`; restores everything.

    `loss_fn(model, batch)` returns the loss; one of torch's own losses is used directly for batches of (inputs,
    targets). `split(batch)` returns inputs and targets if they cannot be recognised. `ignore_index` is the target that
    a loss of your own ignores, if it is not -100. A `test_loader` is only compared with the other two. `checkpoint` is
    what you save, or a function that returns it. At most `num_batches` are read from each loader, from its beginning;
    overlap reads samples for `overlap_seconds` at most. `only` and `skip` name checks.
    """
    chosen = _chosen(only, skip)
    if num_classes is not None and (not isinstance(num_classes, int) or num_classes < 2):
        raise ValueError(f"preflight(num_classes={num_classes!r}): give a whole number of at least 2, or nothing")
    if num_batches < 1 or overfit_steps < 0 or overlap_seconds < 0:
        raise ValueError("preflight(): num_batches is at least 1, overfit_steps and overlap_seconds at least 0")
    train = BatchSource("preflight", loader)
    validation = None if validation_loader is None else BatchSource("preflight", validation_loader, "validation_loader")
    test = None if test_loader is None else BatchSource("preflight", test_loader, "test_loader")
    trial = Trial("preflight", model, loss_fn, optimizer, scheduler=scheduler, split=split)
    start = time.monotonic()
    shown = progress if trial.ranks.rank == 0 else False
    steps = overfit_steps if any(check.name == "overfits" for check in chosen) else 0
    with (
        trial,
        train,
        _entered(validation),
        _entered(test),
        ProgressLine(len(chosen) * 5 + steps, is_shown=shown) as bar,
    ):
        bar.show("reading batches")
        batches = trial.ranks.together(lambda: train.take(num_batches))
        least = trial.ranks.least(len(batches))
        flight = Flight(
            trial=trial,
            train=train,
            validation=validation,
            test=test,
            batches=batches[:least],
            scheduler=scheduler,
            checkpoint=checkpoint,
            split=split,
            given_classes=num_classes,
            given_ignored=ignore_index,
            loss_fn=loss_fn,
            overfit_steps=overfit_steps,
            overlap_seconds=overlap_seconds,
            bar=bar,
        )
        if any(check.name == "targets" or check.name not in WITHOUT_STEP for check in chosen):
            flight.problem = _first_step(flight)
            _ = flight.output  # made by all ranks here, so that no check is the first to need it on one of them
        verdicts = []
        for check in chosen:
            bar.show(check.name.replace("_", " "))
            verdicts.append(_run(check, flight))
            bar.show(check.name.replace("_", " "), 5)
        verdicts = _worst_of_ranks(trial, verdicts)
    lines = [Line(check.name, check.asks, verdict) for check, verdict in zip(chosen, verdicts, strict=True)]
    return Report(tuple(lines), time.monotonic() - start)


def _chosen(only: Collection[str], skip: Collection[str]) -> list[Check]:
    names = {check.name for check in CHECKS}
    only, skip = ([given] if isinstance(given, str) else given for given in (only, skip))
    for given in (*only, *skip):
        if given not in names:
            raise ValueError(f"preflight(): no check {given!r}; there are {', '.join(sorted(names))}")
    return [check for check in CHECKS if (not only or check.name in only) and check.name not in skip]


@contextlib.contextmanager
def _entered(source: BatchSource | None) -> Iterator[None]:
    with contextlib.nullcontext() if source is None else source:
        yield


def _first_step(flight: Flight) -> str | None:
    """Why no step can be made; None if one can, on all ranks."""
    try:
        flight.trial.train()
        flight.trial.backward(flight.batch)
    except Exception as error:  # noqa: BLE001 - the user's own code
        return one_line(error)
    finally:
        flight.trial.rewind()
    return None


def _run(check: Check, flight: Flight) -> CheckResult:
    problem = flight.problem
    if problem is not None and check.name == "output_shape":
        return failed(
            "raises",
            f"no step can be made: {problem}",
            "call loss_fn(model, batch).backward() yourself, and fix its error",
        )
    if problem is not None and check.name not in WITHOUT_STEP:
        return skipped("no step can be made, see output_shape")
    try:
        return check.run(flight)
    except Exception as error:  # noqa: BLE001 - the user's own code, run in an unusual way
        return failed("raises", one_line(error), "see whether your loop does the same; if it does not, skip this check")
    finally:
        flight.trial.rewind()


def _worst_of_ranks(trial: Trial, verdicts: list[CheckResult]) -> list[CheckResult]:
    """Each rank's own verdict if none is worse, else the worst one, with that rank's message."""
    if trial.ranks.num == 1:
        return verdicts
    grades = trial.ranks.each([float(ORDER.index(verdict.grade)) for verdict in verdicts])
    worst = [int(grade) for grade in grades.max(dim=0).values]
    where = [grades[:, place].tolist().index(grade) for place, grade in enumerate(worst)]
    numbers, says, fixes = (
        trial.ranks.texts_from([getattr(verdict, part) for verdict in verdicts], where)
        for part in ("number", "says", "fix")
    )
    found = []
    for place, verdict in enumerate(verdicts):
        if worst[place] > ORDER.index(verdict.grade):
            num_more = int((grades[:, place] == worst[place]).sum()) - 1
            more = f" and {num_more} more" if num_more else ""
            text_there = f"on rank {where[place]}{more}: {says[place]}"
            verdict = CheckResult(ORDER[worst[place]], numbers[place], text_there, fixes[place])
        found.append(verdict)
    return found
