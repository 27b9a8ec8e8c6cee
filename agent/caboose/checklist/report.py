"""The finished checklist: as a table, and as plain values."""

import shutil
import textwrap
from dataclasses import dataclass
from typing import Any

from caboose.checklist.verdict import ORDER, CheckResult, Grade

MARKS: dict[Grade, str] = {"pass": "ok", "warn": "warn", "fail": "FAIL", "skipped": "-"}
COLORS: dict[Grade, str] = {"pass": "32", "warn": "33", "fail": "1;31", "skipped": "2"}
NARROW, WIDE = 60, 120
INDENT = " " * 5


@dataclass(frozen=True, slots=True)
class Line:
    """One check and its verdict."""

    name: str
    asks: str
    verdict: CheckResult


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a preflight."""

    lines: tuple[Line, ...]
    seconds: float

    @property
    def grade(self) -> Grade:
        """The worst one."""
        return max((line.verdict.grade for line in self.lines), key=ORDER.index, default="skipped")

    @property
    def is_passed(self) -> bool:
        """Whether nothing failed; there may be warnings."""
        return self.grade != "fail"

    def __getitem__(self, name: str) -> CheckResult:
        for line in self.lines:
            if line.name == name:
                return line.verdict
        raise KeyError(f"no check {name!r}; there are {', '.join(line.name for line in self.lines)}")

    def count(self, grade: Grade) -> int:
        """How many checks have this verdict."""
        return sum(line.verdict.grade == grade for line in self.lines)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "verdict": self.grade,
            "seconds": round(self.seconds, 3),
            "checks": [
                {
                    "name": line.name,
                    "asks": line.asks,
                    "verdict": line.verdict.grade,
                    "number": line.verdict.number,
                    "says": line.verdict.says,
                    "fix": line.verdict.fix,
                }
                for line in self.lines
            ],
        }

    def table(self, width: int | None = None, *, has_colors: bool = False) -> str:
        """The checklist, for the terminal's width."""
        width = max(NARROW, min(WIDE, width or shutil.get_terminal_size((100, 24)).columns))
        names = max((len(line.name) for line in self.lines), default=0)
        numbers = max((len(line.verdict.number) for line in self.lines), default=0)
        made = []
        for line in self.lines:
            verdict = line.verdict
            mark = MARKS[verdict.grade].ljust(4)
            says = verdict.says if verdict.grade != "skipped" else f"skipped: {verdict.says}"
            head = f"{mark} {line.name:{names}}  {verdict.number:{numbers}}"
            is_short = len(head) + 2 + len(says) <= width
            rows = [f"{head}  {says}" if is_short else head.rstrip()]
            if not is_short:
                rows += textwrap.wrap(says, width, initial_indent=INDENT, subsequent_indent=INDENT)
            if verdict.fix:
                first, next_ones = f"{INDENT}fix: ", f"{INDENT}     "
                rows += textwrap.wrap(verdict.fix, width, initial_indent=first, subsequent_indent=next_ones)
            if has_colors and verdict.grade == "skipped":
                rows = [f"\x1b[{COLORS['skipped']}m{row}\x1b[0m" for row in rows]
            elif has_colors:
                rows[0] = f"\x1b[{COLORS[verdict.grade]}m{mark}\x1b[0m{rows[0][len(mark) :]}"
            made += rows
        return "\n".join([*made, "", self.summary()])

    def summary(self) -> str:
        """The last line."""
        counts = [(self.count("pass"), "passed"), (self.count("warn"), "to look at"), (self.count("fail"), "failed")]
        counts.append((self.count("skipped"), "skipped"))
        return ", ".join(f"{num} {what}" for num, what in counts if num) + f"; {self.seconds:.1f} s"

    def __str__(self) -> str:
        return self.table()
