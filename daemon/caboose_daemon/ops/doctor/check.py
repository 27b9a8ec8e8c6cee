"""What one check found."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "cross", "unknown"]
"""warning: works, but look. cross: does not work. unknown: could not be looked at."""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One line: what was looked at, how it is, and what to do."""

    name: str
    state: State
    text: str
    fix: str = ""
