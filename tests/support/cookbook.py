"""Runs the blocks of docs/cookbook.md in their order; `python -m support.cookbook`, in tests/, writes what they print.

A block of Python whose first line names a file is written to it. A block `text` behind a block of code is what that
prints. A line of a console block that begins with `$` is a command.
"""

import contextlib
import io
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
BLOCK = re.compile(r"```(python|console)\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?%?")
TOLERANCE = 0.1
"""Numbers of another machine's kernels; where the sentence is the same."""


@dataclass(frozen=True)
class Block:
    """Code of the page, and what it prints."""

    kind: str
    code: str
    printed: str
    start: int
    end: int


def blocks(page: str) -> Iterator[Block]:
    for found in BLOCK.finditer(page):
        yield Block(found[1], found[2], found[3] or "", found.start(), found.end())


def run(block: Block, names: dict[str, object], directory: Path) -> str:
    """What the block prints, in this directory and with these names."""
    first = block.code.partition("\n")[0]
    if block.kind == "console":
        return "".join(_command(line[2:], directory) for line in block.code.splitlines() if line.startswith("$ "))
    if first.startswith("# ") and first.endswith(".py"):
        (directory / first[2:]).write_text(block.code)
        return ""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.code, "cookbook.md", "exec"), names)  # the page's own code
    return printed.getvalue()


def _command(line: str, directory: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "110", "NO_COLOR": "1"}
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=120, cwd=directory, env=environment)
    return done.stdout + (f"exit code {done.returncode}\n" if done.returncode else "")


def is_alike(printed: str, expected: str) -> bool:
    """Whether two outputs are the same, with numbers that are nearly so."""
    if NUMBER.sub("#", printed) != NUMBER.sub("#", expected):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(expected), strict=True)
    return all(a == b or math.isclose(_value(a), _value(b), rel_tol=TOLERANCE, abs_tol=1e-2) for a, b in pairs)


def _value(text: str) -> float:
    return float(text.rstrip("%,").replace(",", ""))


@contextlib.contextmanager
def inside(directory: Path) -> Iterator[None]:
    """The working directory, from which its modules are imported."""
    before = Path.cwd()
    os.chdir(directory)
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        sys.modules.pop("train", None)
        os.chdir(before)


def rewritten(page: str, directory: Path) -> str:
    """The page with what its blocks print now."""
    parts, at = [], 0
    names: dict[str, object] = {}
    with inside(directory):
        for block in blocks(page):
            printed = run(block, names, directory)
            parts += [page[at : block.start], f"```{block.kind}\n{block.code}```\n"]
            if printed:
                parts.append(f"\n```text\n{printed}```\n")
            at = block.end
    return "".join([*parts, page[at:]])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PAGE.write_text(rewritten(PAGE.read_text(), Path(made)))
