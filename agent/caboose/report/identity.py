"""Who this process is: job, rank, world, host, and what distinguishes this launch from the last one."""

import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caboose_wire.fields import JOB_PATTERN

NO_NAME = re.compile(r"none|\d+|[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
"""Run ids of torchrun that name no job: its default, a number (often $RANDOM, or that of an example), and the UUID that
--standalone makes; most of them differ at every launch."""

STEP_TASKS = "SLURM_STEP_NUM_TASKS"
"""The processes that srun starts in this step."""


def _started_in() -> str:
    try:
        return Path.cwd().name or "root"
    except OSError:  # it was removed
        return "unknown"


STARTED_IN = _started_in()
"""The directory at the start, usually that of the experiment; scripts change it later, and ranks may differ then."""


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
    """Explicit values first, then torchrun's variables, then those of srun, else a single process.

    A job has the same name at every launch, so that a relaunch is its next attempt: what the user set (`job=`,
    CABOOSE_JOB, torchrun's --rdzv-id), Slurm's job or array task, else the script and the directory it was started in.

    ValueError names the wrong argument or variable.
    """
    if job is not None and not re.fullmatch(JOB_PATTERN, job):
        raise ValueError(
            f"job={job!r}: a job's name is 1 to 128 of the characters A-Z a-z 0-9 _ . : @ - "
            "(pass job=, or set CABOOSE_JOB)"
        )
    if rank is None:
        rank = _whole(env, "RANK", *_of_slurm(env, "SLURM_PROCID"), default=0)
    if world is None:
        world = _whole(env, "WORLD_SIZE", *_of_slurm(env, STEP_TASKS), default=1)
    if not 0 <= rank < world:
        raise ValueError(f"rank={rank} is not below world_size={world}; pass both, or start with torchrun")
    return Identity(
        job=job or _job(env),
        rank=rank,
        world=world,
        launch=_launch(env),
        attempt=_whole(env, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", default=0),
    )


def _of_slurm(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    """A variable of Slurm's, if srun started this process: in a batch script it is about tasks that it may start."""
    return (name,) if env.get(STEP_TASKS) else ()


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
    run = env.get("TORCHELASTIC_RUN_ID") or "none"
    if not NO_NAME.fullmatch(run):
        name = run
    elif env.get("SLURM_ARRAY_JOB_ID") and env.get("SLURM_ARRAY_TASK_ID"):
        name = f"slurm-{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    elif env.get("SLURM_JOB_ID"):
        name = f"slurm-{env['SLURM_JOB_ID']}"
    else:
        name = f"{_script()}@{STARTED_IN}"
    return re.sub(r"[^A-Za-z0-9_.:@-]", "-", name)[:128]


def _script() -> str:
    """The name of what python runs: of the module for `-m`, else of the file or notebook."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", "caboose.__main__"):
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None) or (_notebook(vars(main)) if hasattr(sys, "ps1") else sys.argv[0])
    if not file or file == "-c":
        return "interactive"
    path = Path(file)
    return path.stem if path.stem != "__main__" else path.absolute().parent.name


def _notebook(variables: Mapping[str, Any]) -> str:
    """The notebook that this is a kernel of, as Jupyter's server and VS Code give it; empty at a prompt."""
    return str(variables.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME") or "")


def _launch(env: Mapping[str, str]) -> str:
    """What the launcher gave to all ranks of this launch; empty if nothing."""
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")
    return "/".join(env[name] for name in names if env.get(name))[:256]
