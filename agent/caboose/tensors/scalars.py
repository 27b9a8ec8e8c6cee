"""Turns a value of a user, an optimizer or numpy into a plain one that can be sent."""

from typing import Any

from caboose.guard import left_out
from caboose_wire.fields import MAX_COUNT, Scalar


def plain(value: Any) -> Scalar:
    """The value as None, bool, int, float or a short text. Never waits for a device."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value) if abs(value) < 2**63 else str(value)[:256]
    device = getattr(value, "device", None)
    if getattr(device, "type", "cpu") != "cpu":
        return f"tensor on {device}"
    return plain_item(value) if hasattr(value, "item") else str(value)[:256]


def as_number(value: Any, what: str) -> float | None:
    """The value as a number; else None, which is logged once."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except Exception:  # noqa: BLE001 - a user's value may be of any kind, and raise anything
        left_out(f"{what} of type {type(value).__name__}")
        return None


def plain_item(value: Any) -> Scalar:
    """As `plain`, but a tensor of one element is read even if that waits for its device: for rare calls only."""
    try:
        item = value.item()
    except (ValueError, RuntimeError, TypeError):  # more than one element
        return str(value)[:256]
    return plain(item) if isinstance(item, bool | int | float) else str(item)[:256]


def kept_count(value: Any) -> Any:
    """The count now; for a tensor on a device a copy there, which `whole` reads later, on another thread."""
    device = getattr(value, "device", None)
    return whole(value) if getattr(device, "type", "cpu") == "cpu" else value.detach().clone()


def scheduler_steps(scheduler: Any) -> int | None:
    """How often it was stepped; a fraction (`step(epoch + i / n)`) counts its whole steps."""
    count = getattr(scheduler, "last_epoch", None)
    return count if type(count) is int and count >= 0 else whole(count)


def whole(value: Any) -> int | None:
    """The count as an int; None if it is none. Waits for a tensor on a device."""
    try:
        number = int(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if 0 <= number <= MAX_COUNT else None
