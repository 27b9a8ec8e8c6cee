"""The result of one check."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "cross", "unknown"]
"""warning: works, but needs attention. cross: does not work. unknown: could not be checked."""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One line: what was checked, the result, and the fix."""

    name: str
    state: State
    text: str
    fix: str = ""
