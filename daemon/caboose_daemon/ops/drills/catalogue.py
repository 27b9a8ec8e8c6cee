"""The list of drills, read from a separate process, as the drills need torch."""

import subprocess
import sys

import msgspec

from caboose_daemon.ops.processes import ProcessError

LIST_SECONDS = 120.0


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """A drill; `agent/caboose_drills/drill.py` documents the fields."""

    name: str
    about: str
    rule: str = ""
    cause: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    severity: str = "warning"
    origin_ranks: tuple[int, ...] = ()
    origin_layers: tuple[str, ...] = ()
    fault_step: int = 0
    steps: int = 0
    ranks: int = 1
    seconds: float = 0.0
    settle_seconds: float = 0.0
    is_launched_per_seed: bool = False
    is_side_by_side: bool = False
    may_fail: bool = False

    @property
    def is_healthy(self) -> bool:
        """Whether it has no fault."""
        return not self.rule

    @property
    def has_origin(self) -> bool:
        """Whether its fault begins on a known rank or layer."""
        return bool(self.origin_ranks or self.origin_layers)


class Catalogue(msgspec.Struct, frozen=True):
    """All drills."""

    drills: tuple[Drill, ...]
    healthy: tuple[Drill, ...]

    def named(self, names: tuple[str, ...]) -> list[Drill]:
        """The drills of these names, in the catalogue's order; `all` and `healthy` are groups.

        ValueError for an unknown name.
        """
        known = {drill.name: drill for drill in (*self.drills, *self.healthy)}
        wanted: set[str] = set()
        for name in names:
            if name == "all":
                wanted |= {drill.name for drill in self.drills}
            elif name == "healthy":
                wanted |= {drill.name for drill in self.healthy}
            elif name in known:
                wanted.add(name)
            else:
                raise ValueError(f"no drill {name!r}; known: {', '.join(known)}, all, healthy")
        return [drill for name, drill in known.items() if name in wanted]


def read() -> Catalogue:
    """Runs `python -m caboose_drills list`."""
    command = [sys.executable, "-m", "caboose_drills", "list"]
    try:
        answer = subprocess.run(command, capture_output=True, check=False, timeout=LIST_SECONDS)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise ProcessError(f"listing the drills took more than {LIST_SECONDS:.0f} s") from None
    if answer.returncode:
        lines = answer.stderr.decode(errors="replace").splitlines()[-10:]
        raise ProcessError("the drills cannot be listed:\n" + "\n".join(f"    {line}" for line in lines))
    return msgspec.json.decode(answer.stdout, type=Catalogue)
