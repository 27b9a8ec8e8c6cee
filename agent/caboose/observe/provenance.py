"""What a run can be repeated from: the seed that torch was given, and the commit of the script's code.

Design
------
Read once, at attach, from a few small files of the repository that the main script lies in; no program is started. What
is not committed is not seen, so the commit names the code only where the work tree is clean. A seed that nobody set is
none: torch then has a constant of its own.
"""

import re
import sys
from pathlib import Path

import torch

from caboose_wire.fields import MAX_COUNT, Scalar

UNSET_SEED = 67280421310721
"""torch's own, where `torch.manual_seed` was not called."""
MAX_LEVELS = 12
"""Folders above the script that are searched for a repository."""
SHOWN = 12
"""Digits of a commit."""
MAX_BYTES = 1_000_000
"""Of a file with all references."""
COMMIT = re.compile(r"[0-9a-f]{40,64}")


def gather() -> dict[str, Scalar]:
    """`seed` and `code_version`, as far as they are known."""
    facts: dict[str, Scalar] = {}
    seed = torch.initial_seed()
    if seed != UNSET_SEED:
        facts["seed"] = seed if 0 <= seed <= MAX_COUNT else str(seed)
    version = code_version(getattr(sys.modules.get("__main__"), "__file__", None))
    if version:
        facts["code_version"] = version
    return facts


def code_version(script: str | None) -> str:
    """The commit of the repository that a script lies in; empty where there is none."""
    if not script:
        return ""
    try:
        folder = _git_folder(Path(script).resolve().parent)
        return "" if folder is None else _commit(folder)[:SHOWN]
    except (OSError, UnicodeDecodeError):
        return ""


def _git_folder(start: Path) -> Path | None:
    for folder in [start, *start.parents][:MAX_LEVELS]:
        found = folder / ".git"
        if found.is_dir():
            return found
        if found.is_file():  # of a work tree or a submodule: it names the folder
            return folder / found.read_text().removeprefix("gitdir:").strip()
    return None


def _commit(folder: Path) -> str:
    head = (folder / "HEAD").read_text().strip()
    name = head.removeprefix("ref:").strip()
    if name == head:
        return head if COMMIT.fullmatch(head) else ""
    common = folder / "commondir"
    places = [folder, *([folder / common.read_text().strip()] if common.is_file() else [])]
    for place in places:
        if (place / name).is_file():
            found = (place / name).read_text().strip()
            return found if COMMIT.fullmatch(found) else ""
        packed = place / "packed-refs"
        if packed.is_file() and packed.stat().st_size < MAX_BYTES:
            for line in packed.read_text().splitlines():
                commit, _, ref = line.partition(" ")
                if ref == name and COMMIT.fullmatch(commit):
                    return commit
    return ""
