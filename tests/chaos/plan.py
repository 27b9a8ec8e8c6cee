"""The schedule: what happens in episode N of a seed. The same seed and number always give the same plan.

Design
------
Faults come in turn, so that every one is covered after as many episodes as there are faults, and each turn has another
intent: a rollback that should be committed while the fault hits, one that should be aborted, one that may end either
way, or a run that only takes advice. All else is drawn from a generator of this episode alone, so that one episode can
be run again without those before it.
"""

import random
from dataclasses import dataclass
from typing import Literal

Intent = Literal["commit", "abort", "race", "advise"]

INTENTS: tuple[Intent, ...] = ("commit", "abort", "race", "commit", "abort", "advise")
"""commit: the fault hits when all ranks have accepted the command. abort: the command comes after its boundary. race:
the fault hits at any time. advise: there are no commands."""
NOT_AT_EXIT = ("rank_killed", "rank_stopped", "rank_threads")
"""Faults that would delay or prevent the exit themselves, or that need a running loop."""


@dataclass(frozen=True)
class Episode:
    """Everything that was drawn for one episode."""

    seed: int
    number: int
    fault: str
    intent: Intent
    sharding: Literal["ddp", "fsdp2"]
    is_by_policy: bool
    """A batch becomes NaN and the daemon decides by itself; else the rollback is requested over HTTP."""
    bad_batch: int
    skip: int
    lr_scale: float
    at_step: int
    """The first step at which a rollback is requested."""
    early_seconds: float
    """The fault also hits once before that, for so long; 0: not."""
    delay_seconds: float
    """Between the command and the fault, in a race."""
    seconds: float
    """How long the fault lasts."""
    is_through_exit: bool
    """The fault hits once more, and lasts until the run has ended."""
    closes: bool
    """The script calls `monitor.close`; else it is left to the interpreter's exit."""
    exit_code: int
    victim: int
    """The rank that a rank's fault hits."""
    is_cold: bool
    """Started by the command `torchrun`; else by the same launcher from a process that is warm (see `launcher`)."""

    @property
    def name(self) -> str:
        return f"seed {self.seed} episode {self.number}"

    @property
    def mode(self) -> str:
        return "advise" if self.intent == "advise" else "auto"


def plan(seed: int, number: int, faults: tuple[str, ...]) -> Episode:
    """Episode `number`, from 0, of a seed."""
    draw = random.Random(f"{seed}:{number}")
    turn, place = divmod(number, len(faults))
    fault = faults[(place + 7 * seed) % len(faults)]
    intent = INTENTS[(turn + 3 * seed + place) % len(INTENTS)]
    is_by_policy = intent != "advise" and draw.random() < 0.4
    at_step = draw.randint(36, 48)
    can_fail = fault != "rank_killed"
    return Episode(
        seed=seed,
        number=number,
        fault=fault,
        intent=intent,
        sharding=("ddp", "fsdp2")[(turn + place + seed) % 2],
        is_by_policy=is_by_policy,
        bad_batch=at_step if is_by_policy else 0,
        skip=draw.choice((0, 0, 1, 7)),
        lr_scale=draw.choice((1.0, 1.0, 0.5)),
        at_step=at_step,
        early_seconds=draw.uniform(0.1, 0.8) if draw.random() < 0.4 else 0.0,
        delay_seconds=draw.uniform(0.0, 2.0),
        seconds=draw.uniform(0.4, 2.0),
        is_through_exit=fault not in NOT_AT_EXIT and draw.random() < 0.4,
        closes=draw.random() < 0.5,
        exit_code=draw.choice((0, 0, 0, 7)) if can_fail else 0,
        victim=draw.randint(0, 1),
        is_cold=draw.random() < 0.1,
    )
