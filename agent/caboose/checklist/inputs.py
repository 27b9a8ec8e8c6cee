"""inputs: whether the inputs are finite, in a plausible range, and normalised."""

import torch

from caboose.checklist.flight import Flight, number
from caboose.checklist.verdict import ORDER, CheckResult, failed, passed, skipped, warned
from caboose.trials.batches import Unreadable, digest, parted, tensors

ASKS = "Are the inputs finite and normalised?"
OFF_CENTRE = 3.0
"""A mean of more than this many standard deviations."""
WIDE, NARROW = 10.0, 0.01
"""Standard deviations from which normalisation is suggested."""
EXTREME = 100.0
"""Single values beyond plus or minus this are reported."""


def run(flight: Flight) -> CheckResult:
    """Checks all batches."""
    by_name: dict[str, list[torch.Tensor]] = {}
    for batch in flight.batches:
        for name, tensor in tensors(parted(batch, flight.split)[0]):
            if tensor.numel():
                by_name.setdefault(name, []).append(tensor.detach().cpu().reshape(-1))
    if not by_name:
        return skipped(
            "the batches hold no tensors that are known to be inputs", "pass split=lambda batch: (inputs, targets)"
        )
    if len(flight.batches) > 1 and _are_same(flight):
        return failed(
            f"{len(flight.batches)} equal",
            f"all {len(flight.batches)} batches are the same",
            "look at the sampler and at the dataset's indexing",
        )
    wholes = {name: torch.cat(parts) for name, parts in by_name.items()}
    varying = {name: whole for name, whole in wholes.items() if bool((whole != whole[0]).any())}
    chosen = varying or wholes
    verdicts = [_judged(f"{name}: " if name else "", whole) for name, whole in chosen.items()]
    worst = max(verdicts, key=lambda verdict: ORDER.index(verdict.grade))
    if worst.grade != "pass":
        return worst
    floats = [verdict for verdict, whole in zip(verdicts, chosen.values(), strict=True) if whole.is_floating_point()]
    still = len(wholes) - len(varying)
    return passed(
        (floats or verdicts)[-1].number,
        f"{sum(len(parts) for parts in by_name.values())} tensors of {len(flight.batches)} batches"
        + (f"; {still} of {len(wholes)} always the same" if still else ""),
    )


def _are_same(flight: Flight) -> bool:
    try:
        return len({digest(parted(batch, flight.split)[0]) for batch in flight.batches}) == 1
    except Unreadable:
        return False


def _judged(at: str, whole: torch.Tensor) -> CheckResult:
    """One input, of all batches."""
    if not whole.is_floating_point():
        first, last = int(whole.min()), int(whole.max())
        if whole.dtype is torch.uint8 and last > 1:
            return warned(
                f"0..{last}", f"{at}raw bytes", "see that the model or the loss turns them into numbers near 0"
            )
        return passed(f"whole {first}..{last}", "")
    whole = whole.float()
    num_bad = int((~torch.isfinite(whole)).sum())
    if num_bad:
        return failed(
            f"{num_bad} bad",
            f"{at}{num_bad} of {whole.numel()} inputs are NaN or infinite",
            "clean the data, or mask what is missing",
        )
    std, mean = (float(value) for value in torch.std_mean(whole)) if whole.numel() > 1 else (0.0, float(whole))
    low, high = float(whole.min()), float(whole.max())
    measured = f"{number(mean)} ± {number(std)}"
    if low == high:
        return failed(measured, f"{at}all inputs are {number(mean)}", "look at the transforms")
    is_mask = bool(((whole == 0) | (whole == 1)).all())
    if not is_mask and (std > WIDE or std < NARROW or abs(mean) > OFF_CENTRE * std):
        looks = " (bytes?)" if low >= 0 and 200 < high <= 255 else ""
        return warned(
            measured,
            f"{at}inputs in {number(low)}..{number(high)}{looks}, mean {number(mean)}, std {number(std)}",
            "normalise: (x - mean) / std",
        )
    far = max(-low, high)
    if far > EXTREME:
        num_far = int((whole.abs() > EXTREME).sum())
        return warned(
            measured,
            f"{at}{num_far} of {whole.numel()} inputs are beyond {EXTREME:g}, the farthest is {number(far)}, "
            f"{number(far / std)} standard deviations out",
            "look for sentinels (-999, 9999) and outliers: clip them, or mask what is missing",
        )
    return passed(measured, "")
