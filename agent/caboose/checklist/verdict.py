"""The result of a check: its verdict, the measured number, and the fix."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from caboose.checklist.flight import Flight

Grade = Literal["pass", "warn", "fail", "skipped"]
ORDER: tuple[Grade, ...] = ("skipped", "pass", "warn", "fail")
"""From the least to the most serious."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check's result."""

    grade: Grade
    number: str
    """The measured value, short."""
    says: str
    """What was found, or why it could not be checked."""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the checklist."""

    name: str
    asks: str
    """The question, for people."""
    run: "Callable[[Flight], CheckResult]"


def passed(number: str, says: str) -> CheckResult:
    """All is well."""
    return CheckResult("pass", number, says)


def warned(number: str, says: str, fix: str) -> CheckResult:
    """It may be intended."""
    return CheckResult("warn", number, says, fix)


def failed(number: str, says: str, fix: str) -> CheckResult:
    """It will not train, or not what was intended."""
    return CheckResult("fail", number, says, fix)


def skipped(why: str, fix: str = "") -> CheckResult:
    """It could not be checked."""
    return CheckResult("skipped", "", why, fix)
