"""The files in a directory of checkpoints. Needs no torch.

DIRECTORY/step-<n>/              a complete checkpoint: it got this name after everything else was on disk
DIRECTORY/step-<n>.replaced/     the one before, while a new one of the same step takes its name
DIRECTORY/step-<n>.incomplete/   one that is being written, was never finished, or is being removed
  caboose.json                   the manifest, written last
  index.json                     the place of each tensor
  shared.json                    settings and other plain values that all ranks share
  rank-<r>.json, rank-<r>.pt     each rank's own state: random numbers, and whatever differs between ranks
  __<r>_<k>.distcp, .metadata    as torch.distributed.checkpoint writes them
  pinned, best, healthy, tainted marks; an empty file each, made by Caboose or manually
"""

import os
import re
import shutil
from pathlib import Path
from typing import Literal

MANIFEST = "caboose.json"
INDEX = "index.json"
SHARED = "shared.json"
INCOMPLETE = ".incomplete"
REPLACED = ".replaced"

Mark = Literal["pinned", "best", "healthy", "tainted"]
_NAME = re.compile(r"step-(\d{1,16})")


def path_of(directory: Path, step: int) -> Path:
    """The path of the complete checkpoint of this step."""
    return directory / f"step-{step}"


def aside(path: Path) -> Path:
    """Its path while it is not complete."""
    return path.with_name(path.name + INCOMPLETE)


def replaced(path: Path) -> Path:
    """The path of the one before while the new one takes its name."""
    return path.with_name(path.name + REPLACED)


def is_ours(path: Path) -> bool:
    """Whether Caboose wrote it, or started to."""
    return (path / MANIFEST).exists() or (path / INDEX).exists() or path.name.endswith(INCOMPLETE)


def steps_in(directory: Path) -> dict[int, Path]:
    """Checkpoints with their final name, newest first; they are not checked."""
    found = {}
    if directory.is_dir():
        for path in directory.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is not None and path.is_dir():
                found[int(match[1])] = path
    return dict(sorted(found.items(), reverse=True))


def leftovers_in(directory: Path) -> list[Path]:
    """Unfinished checkpoints."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if re.fullmatch(r"step-\d+.*\.incomplete", path.name))


def give_names_back(directory: Path) -> None:
    """Completes a replacement that a killed process left half-way.

    If the new checkpoint has the name, the old one is removed; else the old one gets its name back. For one process at
    a time.
    """
    if not directory.is_dir():
        return
    for old in sorted(directory.iterdir()):
        path = old.with_name(old.name.removesuffix(REPLACED))
        if path == old or _NAME.fullmatch(path.name) is None or not old.is_dir():
            continue
        if path.exists():
            remove(old)
        else:
            old.rename(path)
            sync_directory(directory)


def put_in_place(new: Path, path: Path) -> None:
    """Gives a complete checkpoint its name; one that has the name is set aside until then.

    If the process is killed at any point, both are on disk; `give_names_back` completes it, now or at the next start.
    """
    is_first = not path.exists()
    if not is_first:
        path.rename(replaced(path))
    try:
        new.rename(path)
    except BaseException:
        if not is_first:
            replaced(path).rename(path)
        raise
    sync_directory(path.parent)


def is_marked(path: Path, mark: Mark) -> bool:
    """Whether a checkpoint has this mark."""
    return (path / mark).exists()


def set_mark(path: Path, mark: Mark, *, is_on: bool = True) -> None:
    """Adds or removes a mark."""
    if is_on:
        (path / mark).touch()
    else:
        (path / mark).unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Removes a checkpoint; if killed half-way, the rest does not look like a complete one."""
    if not path.name.endswith(INCOMPLETE):
        away = path.with_name(path.name + ".removed" + INCOMPLETE)
        shutil.rmtree(away, ignore_errors=True)
        path.rename(away)
        path = away
    shutil.rmtree(path)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durably(path: Path, content: bytes) -> None:
    """Writes a file and waits until it is on disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
