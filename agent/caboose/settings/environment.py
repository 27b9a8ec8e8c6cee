"""What the environment sets, beside the arguments of `attach`."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from caboose.report.connection import CurveKeys
from caboose.settings.options import Sampling
from caboose_wire import read_secret
from caboose_wire.curve_keys import read_keys
from caboose_wire.endpoints import DEFAULT_ENDPOINT, is_local, split_endpoint, split_tcp
from caboose_wire.private_files import NotPrivate, read_or_make, user_secret_path

VARIABLES = (
    "CABOOSE_AGENT_KEY",
    "CABOOSE_DISABLED",
    "CABOOSE_ENDPOINT",
    "CABOOSE_HUNT",
    "CABOOSE_INSECURE",
    "CABOOSE_JOB",
    "CABOOSE_LAUNCH_SECRET",
    "CABOOSE_OBJECTIVE",
    "CABOOSE_OVERHEAD_BUDGET",
    "CABOOSE_QUIET",
    "CABOOSE_SAMPLE_COMPILED",
    "CABOOSE_SAMPLE_EVERY",
    "CABOOSE_SECRET_FILE",
    "CABOOSE_SERVER_KEY",
)
"""Every variable the agent reads beside the launchers' own."""

OBJECTIVES = ("supervised", "adversarial", "reinforcement")
SAMPLE_EVERY = 100
OVERHEAD_BUDGET = 0.01


@dataclass(frozen=True)
class Settings:
    """Where to report, with which keys, and how often to sample."""

    endpoint: str
    curve: CurveKeys | None
    sample_every: int
    overhead_budget: float = OVERHEAD_BUDGET
    """The agent's share of a step; above it, the agent samples less often."""
    samples_compiled: bool = False
    """Read activations inside compiled graphs."""
    secret: bytes | None = None
    """Commands must be signed with it; see `with_secret`."""
    why_uncommanded: str = ""
    """Why no command can be accepted though the run allows it; empty if they can."""
    is_local: bool = True
    """Whether the daemon is on this machine."""
    hunt: bool = False
    """Keep the last batch, and run it again when a number is not finite."""
    quiet: bool = False
    """Print no lines about the run."""


def is_disabled(env: Mapping[str, str]) -> bool:
    """Whether the environment switches the agent off."""
    return _is_on(env, "CABOOSE_DISABLED")


def samples_compiled(env: Mapping[str, str]) -> bool:
    """Whether the environment asks for the activations inside compiled graphs."""
    return _is_on(env, "CABOOSE_SAMPLE_COMPILED")


def objective(env: Mapping[str, str], given: str | None) -> str:
    """What the run is trained for; ValueError if that is none of the known ones."""
    where = "CABOOSE_OBJECTIVE=" if given is None else "attach(objective=...): "
    chosen = (env.get("CABOOSE_OBJECTIVE") or OBJECTIVES[0]) if given is None else given
    if chosen not in OBJECTIVES:
        raise ValueError(f"{where}{chosen!r}: use one of {', '.join(OBJECTIVES)}")
    return chosen


def resolve(
    env: Mapping[str, str],
    *,
    endpoint: str | None = None,
    sampling: Sampling | None = None,
    hunt: bool | None = None,
) -> Settings:
    """Arguments first, then the environment, then the defaults; ValueError names what is wrong and the way out."""
    sampling = sampling or Sampling()
    if endpoint is not None:
        name = "endpoint"
    else:
        name = "CABOOSE_ENDPOINT"
        endpoint = env.get(name) or DEFAULT_ENDPOINT
    try:
        scheme, _ = split_endpoint(endpoint)
        has_port = scheme == "ipc" or split_tcp(endpoint)[1] > 0
    except ValueError as error:
        raise ValueError(f"{name}: {error}; the daemon prints its own when it starts") from None
    if not has_port:
        raise ValueError(f"{name}={endpoint!r} has no port; the daemon's default is 5757")
    return Settings(
        endpoint=endpoint,
        curve=_curve(env, name, endpoint, is_local=is_local(endpoint)),
        sample_every=_sample_every(env) if sampling.every is None else sampling.every,
        overhead_budget=_overhead_budget(env) if sampling.overhead_budget is None else sampling.overhead_budget,
        samples_compiled=samples_compiled(env) if sampling.compiled is None else sampling.compiled,
        secret=read_secret(env["CABOOSE_SECRET_FILE"]) if env.get("CABOOSE_SECRET_FILE") else None,
        is_local=is_local(endpoint),
        hunt=_hunt(env, hunt),
        quiet=_is_on(env, "CABOOSE_QUIET"),
    )


def with_secret(settings: Settings, env: Mapping[str, str]) -> Settings:
    """With a secret for a run that may act: the one that is set, else on this machine the one of this user.

    Where neither can be had, the secret is one that nobody knows: no command is obeyed. The rank still takes part in
    what all ranks of an `auto` run do together, since the others may have a secret.
    """
    if settings.secret is not None or not settings.is_local:
        return settings
    path = user_secret_path(env)
    try:
        if path is None:
            raise NotPrivate("this user has no home directory")
        return replace(settings, secret=read_or_make(path))
    except NotPrivate as error:
        why = str(error)
    except OSError as error:
        why = f"{path}: {error.strerror or error}"
    return replace(settings, secret=secrets.token_bytes(32), why_uncommanded=why)


def _curve(env: Mapping[str, str], name: str, endpoint: str, *, is_local: bool) -> CurveKeys | None:
    keys = read_keys(env)
    if keys is not None:
        return CurveKeys(*keys)
    if not is_local and not _is_on(env, "CABOOSE_INSECURE"):
        raise ValueError(
            f"{name}={endpoint!r} is not on this machine, and no keys are set: set CABOOSE_SERVER_KEY and "
            "CABOOSE_AGENT_KEY (`caboose keys new` prints both), or CABOOSE_INSECURE=1 on a network you trust"
        )
    return None


def _sample_every(env: Mapping[str, str]) -> int:
    text = env.get("CABOOSE_SAMPLE_EVERY") or str(SAMPLE_EVERY)
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"CABOOSE_SAMPLE_EVERY={text!r}: give the steps between two samples, at least 1")
    return int(text)


def _overhead_budget(env: Mapping[str, str]) -> float:
    text = env.get("CABOOSE_OVERHEAD_BUDGET") or str(OVERHEAD_BUDGET)
    try:
        budget = float(text)
    except ValueError:
        budget = -1.0
    if not 0 < budget <= 1:
        raise ValueError(
            f"CABOOSE_OVERHEAD_BUDGET={text!r}: give the agent's share of a step, above 0 and at most 1; "
            "0.01 is one percent"
        )
    return budget


def _hunt(env: Mapping[str, str], given: bool | None) -> bool:
    if given is not None and not isinstance(given, bool):
        raise ValueError(f"attach(hunt={given!r}): use True or False")
    return _is_on(env, "CABOOSE_HUNT") if given is None else given


def _is_on(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").strip().lower()
    if text in ("", "0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on"):
        return True
    raise ValueError(f"{name}={text!r}: use 1 or 0")
