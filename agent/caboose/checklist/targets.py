"""targets: whether they are finite, in the range of the classes, and more than one."""

import math

import torch

from caboose.checklist.flight import Flight, number
from caboose.checklist.verdict import CheckResult, failed, passed, skipped, warned
from caboose.trials.batches import parted
from caboose.trials.mixing import are_sorted

ASKS = "Are the targets finite and in range?"


def run(flight: Flight) -> CheckResult:
    """Checks all batches."""
    outside = _outside(flight)
    found = [parted(batch, flight.split)[1] for batch in flight.batches]
    parts = [flight.learned_targets(targets).cpu() for targets in found if targets is not None]
    if not parts:
        return skipped("no targets are found in the batches", "pass split=lambda batch: (inputs, targets)")
    whole = torch.cat(parts)
    if not whole.numel():
        return failed(
            "0", f"all targets are {flight.ignored_target}, which the loss ignores", "look at how labels are masked"
        )
    if whole.is_floating_point():
        return _measured(whole)
    classes = flight.num_classes
    low, high = int(whole.min()), int(whole.max())
    measured = f"{low}..{high}"
    if outside is not None:
        return outside
    counts = torch.unique(whole, return_counts=True)[1]
    num_seen, top = len(counts), float(counts.max()) / whole.numel()
    if num_seen == 1 and whole.numel() > 1:
        return failed(
            measured,
            f"{whole.numel()} targets of {len(flight.batches)} batches are all {low}",
            "shuffle: the data seem to be sorted by class",
        )
    if are_sorted(parts):
        is_pure = all(len(torch.unique(part)) == 1 for part in parts)
        says = "every batch holds one class only" if is_pure else "most batches hold one class, or few of them"
        return warned(measured, says, "shuffle: the data seem to be sorted by class")
    if top > 0.95 and num_seen > 1:
        return warned(
            measured, f"{top:.0%} of the targets are one class", "weigh the classes, and do not judge by accuracy"
        )
    return passed(
        measured, f"{num_seen} classes among {whole.numel()} targets" + (f", of {classes}" if classes else "")
    )


def _outside(flight: Flight) -> CheckResult | None:
    """Whether some are not among the classes. A loss may ignore those: so it is evaluated."""
    classes = flight.num_classes
    parts = [parted(batch, flight.split)[1] for batch in flight.batches]
    learned = [flight.learned_targets(part).cpu() for part in parts if part is not None]
    whole = torch.cat(learned) if classes is not None and learned else torch.zeros(0)
    bad = whole[(whole < 0) | (whole >= (classes or 0))] if not whole.is_floating_point() else whole[:0]
    if not flight.trial.ranks.anywhere(bool(bad.numel())):
        return None
    is_taken = flight.known_ignored is None and flight.problem is None and _is_taken(flight)
    if not bad.numel():
        return None
    measured, says = f"{int(whole.min())}..{int(whole.max())}", f"{bad.numel()} targets outside 0..{(classes or 0) - 1}"
    fix = f"map the classes to 0..{(classes or 0) - 1}, or give the model as many outputs as classes"
    kinds = sorted(set(bad.tolist()))
    if is_taken and len(kinds) == 1:
        return warned(measured, f"{says}, which the loss takes", f"if it leaves them out, pass ignore_index={kinds[0]}")
    if is_taken:
        return warned(measured, f"{says}, which the loss takes", f"{fix}; else name the targets by split=")
    return failed(measured, says, fix)


def _is_taken(flight: Flight) -> bool:
    """Whether the loss gives a number for all batches, on all ranks."""
    flight.trial.train()
    try:
        return all(math.isfinite(flight.trial.measure(batch)) for batch in flight.batches)
    except Exception:  # noqa: BLE001 - the user's own loss; that it raised is the answer
        return False


def _measured(whole: torch.Tensor) -> CheckResult:
    num_bad = int((~torch.isfinite(whole)).sum())
    if num_bad:
        return failed(
            f"{num_bad} bad",
            f"{num_bad} of {whole.numel()} targets are NaN or infinite",
            "clean the data, or mask what is missing",
        )
    std, mean = (float(value) for value in torch.std_mean(whole.float())) if whole.numel() > 1 else (0.0, float(whole))
    measured = f"{number(mean)} ± {number(std)}"
    if std == 0.0 and whole.numel() > 1:
        return failed(measured, "all targets are the same", "look at how the targets are read")
    if abs(mean) > 100 or std > 100:
        return warned(
            measured,
            f"targets of mean {number(mean)} and std {number(std)}",
            "scale them to about 1, and scale the predictions back",
        )
    return passed(measured, f"{whole.numel()} targets in {number(float(whole.min()))}..{number(float(whole.max()))}")
