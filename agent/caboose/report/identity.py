"""Who this process is: job, rank, world, host, and what distinguishes this launch from the last one."""

import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from caboose_wire.fields import JOB_PATTERN


@dataclass(frozen=True)
class Identity:
    """One rank of one launch of one job."""

    job: str
    rank: int
    world: int
    launch: str = ""
    attempt: int = 0
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    incarnation: str = field(default_factory=lambda: secrets.token_hex(16))
    proof: str = field(default="", repr=False)
    """That this rank belongs to the launch; see `launch_secret`."""


def resolve(
    env: Mapping[str, str],
    *,
    job: str | None = None,
    rank: int | None = None,
    world: int | None = None,
) -> Identity:
    """Explicit values first, then torchrun's variables, then Slurm's, else a single process.

    ValueError names the wrong argument or variable.
    """
    if job is not None and not re.fullmatch(JOB_PATTERN, job):
        raise ValueError(
            f"job={job!r}: a job's name is 1 to 128 of the characters A-Z a-z 0-9 _ . : @ - "
            "(pass job=, or set CABOOSE_JOB)"
        )
    if rank is None:
        rank = _whole(env, "RANK", "SLURM_PROCID", default=0)
    if world is None:
        world = _whole(env, "WORLD_SIZE", "SLURM_NTASKS", default=1)
    if not 0 <= rank < world:
        raise ValueError(f"rank={rank} is not below world_size={world}; pass both, or start with torchrun")
    return Identity(
        job=job or _job(env),
        rank=rank,
        world=world,
        launch=_launch(env),
        attempt=_whole(env, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", default=0),
    )


def _whole(env: Mapping[str, str], *names: str, default: int) -> int:
    for name in names:
        text = env.get(name, "")
        if text:
            if not text.isdecimal():
                raise ValueError(f"{name}={text!r} is not a whole number")
            return int(text)
    return default


def _job(env: Mapping[str, str]) -> str:
    given = env.get("CABOOSE_JOB", "")
    if given:
        if not re.fullmatch(JOB_PATTERN, given):
            raise ValueError(f"CABOOSE_JOB={given!r}: use 1 to 128 of the characters A-Z a-z 0-9 _ . : @ -")
        return given
    if env.get("SLURM_JOB_ID"):
        name = f"slurm-{env['SLURM_JOB_ID']}"
    elif env.get("TORCHELASTIC_RUN_ID", "none") != "none":
        name = env["TORCHELASTIC_RUN_ID"]
    else:
        main = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0]
        script = Path(main).stem if main and main != "-c" else "interactive"
        address = env.get("MASTER_ADDR", "")
        name = f"{script}@{socket.gethostname() if _is_loopback(address) else address}"
    return re.sub(r"[^A-Za-z0-9_.:@-]", "-", name)[:128]


def _is_loopback(address: str) -> bool:
    """Whether all ranks are on this machine; such an address does not identify a host."""
    return address in ("", "localhost", "::1") or address.startswith("127.")


def _launch(env: Mapping[str, str]) -> str:
    """What the launcher gave to all ranks of this launch; empty if nothing."""
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")
    return "/".join(env[name] for name in names if env.get(name))[:256]
