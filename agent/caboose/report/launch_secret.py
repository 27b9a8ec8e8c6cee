"""The secret of a launch, and the proof of it that a Hello carries: nobody else can take the job or a rank over.

Design
------
The secret outlives the processes of a launch, so that ranks which the launcher restarts have it again. It is
`CABOOSE_LAUNCH_SECRET`, if the launcher's script sets that; needed if the ranks are on several hosts. Else, with all
ranks on this host, it is a file of this user alone, named after the launcher's process: its id and start time. The
launcher is the first ancestor without this rank's own variables, so a wrapper script around each rank makes no
difference; a process that started the other ranks itself, as with Lightning's launcher, is the launcher. Whichever rank
comes first makes the file; files of launchers that are gone are removed then. No connection, collective or store is
needed.

The secret itself is never sent. The proof is a MAC of the job's name, so it reveals nothing about the proof of another
job. Whoever can read the connection can repeat it: use keys where others can.
"""

import contextlib
import hmac
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from caboose.report.identity import Identity
from caboose_wire.endpoints import is_loopback
from caboose_wire.private_files import NotPrivate, read_or_make, user_secret_path

logger = logging.getLogger("caboose")

VARIABLE = "CABOOSE_LAUNCH_SECRET"
MIN_CHARACTERS = 16
MAX_ANCESTORS = 32
OWN_VARIABLES = (b"LOCAL_RANK=", b"RANK=", b"SLURM_PROCID=")
"""What a launcher gives to each rank."""


def proof(env: Mapping[str, str], who: Identity) -> str:
    """The proof for this job; empty if the launch has no secret. ValueError if the variable is too short."""
    secret = _given(env)
    if secret is None and _is_one_host(env, who.world):
        secret = _of_launcher(env)
    if secret is None:
        return ""
    return hmac.digest(secret, b"caboose launch 1\0" + who.job.encode(), "sha256").hex()


def _given(env: Mapping[str, str]) -> bytes | None:
    text = env.get(VARIABLE, "").strip()
    if text and len(text) < MIN_CHARACTERS:
        raise ValueError(
            f"{VARIABLE} has {len(text)} characters; use at least {MIN_CHARACTERS}: "
            f'export {VARIABLE}="$(openssl rand -hex 32)" before the launcher'
        )
    return text.encode() or None


def _is_one_host(env: Mapping[str, str], world: int) -> bool:
    if world == 1:
        return True
    local = env.get("LOCAL_WORLD_SIZE", "")
    if local:
        return local == str(world)
    return env.get("SLURM_NNODES", "") == "1" or is_loopback(env.get("MASTER_ADDR", ""))


def _of_launcher(env: Mapping[str, str]) -> bytes | None:
    user = user_secret_path(env)
    if user is None:
        return None
    try:
        launcher = _launcher()
        path = user.parent / "launches" / f"{socket.gethostname()}-{launcher}-{_started(launcher)}"
        if not path.exists():
            _remove_old(path.parent)
        return read_or_make(path)
    except (OSError, NotPrivate, ValueError) as error:
        logger.info("caboose: this launch has no secret, so another may claim its job's name: %s", error)
        return None


def _launcher() -> int:
    """The process that started all ranks of this host."""
    mine = _own_variables(os.getpid())
    if not mine and _has_started_ranks():
        return os.getpid()
    pid = os.getppid()
    for _ in range(MAX_ANCESTORS):
        if pid <= 1 or not mine or not mine <= _environment(pid):
            break
        pid = int(_stat(pid)[1])
    return pid


def _own_variables(pid: int) -> set[bytes]:
    return {variable for variable in _environment(pid) if variable.startswith(OWN_VARIABLES)}


def _has_started_ranks() -> bool:
    """Whether a child of this process was started with the variables of another rank than this one."""
    here = {f"{name}={value}".encode() for name, value in os.environ.items()}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
            if int(_stat(int(path.name))[1]) == os.getpid() and _own_variables(int(path.name)) - here:
                return True
    return False


def _environment(pid: int) -> set[bytes]:
    """The variables that a process was started with; none where another user's cannot be read."""
    with contextlib.suppress(OSError):
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    return set()


def _started(pid: int) -> int:
    """When a process started, in ticks since the machine did."""
    return int(_stat(pid)[19])


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; the name before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _remove_old(directory: Path) -> None:
    """Removes the files of this host whose launcher is gone."""
    with contextlib.suppress(OSError):
        for path in directory.glob(f"{socket.gethostname()}-*"):
            pid, _, started = path.name.removeprefix(f"{socket.gethostname()}-").partition("-")
            if pid.isdecimal() and started.isdecimal() and not _is_running(int(pid), int(started)):
                path.unlink(missing_ok=True)


def _is_running(pid: int, started: int) -> bool:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return _started(pid) == started
    return False
