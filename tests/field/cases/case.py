"""A case: for one public code base the command, the data, and what it needs to run on a small machine.

Nothing here holds a line of those code bases. What a run needs beyond flags of the script is in `env`: variables that
the code base reads, or the recorder's switches (`recorder/sitecustomize.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One script of one code base. `{data}` and `{code}` in a command or variable are the paths of both."""

    name: str
    repository: str
    """owner/name on GitHub."""
    proof: str
    """A file that a checkout of it has."""
    command: tuple[str, ...]
    """What follows `python`."""
    part: str = "."
    """The directory of the checkout that is copied; `{code}` is its copy."""
    directory: str = "."
    """Where it is started, in the copy."""
    ranks: int = 1
    data: Callable[[Path], object] | None = None
    """Writes the dataset into an empty directory."""
    prepare: Callable[[Path], object] | None = None
    """Adds files to the copy, where a script has no flag for its data."""
    env: dict[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    """Directories of the checkout on PYTHONPATH."""
    watched: tuple[int, ...] = (0,)
    """The optimizers, in the order of their first steps, whose model Caboose is expected to watch."""
    logged: tuple[str, str] | None = None
    """Where the script logs the loss of each step, if that is not what it gives to `backward`: a file of the run, and a
    pattern whose group is the loss."""
    note: str = ""
    edits: str = "none"


def words(command: str) -> tuple[str, ...]:
    return tuple(command.split())


DRIVERS = str(Path(__file__).resolve().parents[1] / "drivers")
"""Short scripts of our own that use a library as its documentation does."""
