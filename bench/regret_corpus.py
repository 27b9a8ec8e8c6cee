"""Healthy logs of a corpus under `auto`: none may be rolled back.

Design
------
A log cannot answer to a rollback, so it only has to show that none is decided. Its rows are reported as the steps of
one rank that has a snapshot of every step it may need, and every rule that can break a run's numbers is on.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from detection import read_corpus
from regret_play import GROUP, NORMS, RULES, watching

from caboose_daemon.config import Config
from caboose_daemon.offline.replay.logs import read_log
from caboose_daemon.rollback_state.settings import RollbackConfig
from caboose_wire import Held, Holdings, StepReport
from support.ranks import a_hello
from support.recorder import Core

MAX_ROWS = 20_000
EVERY = 20
NUM_HELD = 4


def report(corpus: Path, processes: int) -> bool:
    """Whether no healthy log is rolled back; prints those that are."""
    healthy = [run.id for run in read_corpus(corpus) if run.is_healthy and not run.is_excerpt]
    with ProcessPoolExecutor(processes) as pool:
        found = dict(
            zip(healthy, pool.map(decisions, [corpus / "runs" / f"{id_}.csv" for id_ in healthy]), strict=True)
        )
    bad = {id_: lines for id_, lines in found.items() if lines}
    print(f"\n{len(bad)} of {len(healthy)} healthy logs would be rolled back (goal 0).")
    for id_, lines in bad.items():
        print(f"- {id_}: {'; '.join(lines)}")
    return not bad


def decisions(path: Path) -> list[str]:
    """The rollbacks decided in one log."""
    log = read_log(path)
    losses = log.columns.get("loss")
    if losses is None:
        return []
    core = Core(Config(rules=watching(RULES, {}), rollback=RollbackConfig(mode="auto", cooldown_steps=0)))
    hello: dict[str, Any] = {"world": 1, "rollback": "auto"}
    core.say(b"peer", a_hello(**hello), 0.0)
    snapshots: list[Held] = []
    norms = log.columns.get("grad_norm")
    now, step, before = 0.0, 0, -1
    for place, logged in enumerate(log.steps[:MAX_ROWS].tolist()):
        if logged < before:
            break  # started again: one attempt is enough
        before, step, now = logged, step + 1, now + 1.0
        norm = norms.values[place] if norms is not None and norms.is_logged[place] else np.nan
        arrays = {} if not np.isfinite(norm) else {"grad_norm": (NORMS * 0 + norm / 2).astype(np.float32)}
        if losses.is_logged[place]:
            told = {"loss": float(losses.values[place]), "arrays": arrays or {"grad_norm": NORMS}}
            core.say(b"peer", StepReport(attempt=0, seq=step, step=step, model_step=step, time=now, **told), now)
        (job,) = core.state.jobs.values()
        if not step % EVERY and not job.rollback.is_holding:
            snapshots = [*snapshots, Held(step, step, now)][-NUM_HELD:]
            core.say(b"peer", Holdings(group=GROUP, snapshots=tuple(snapshots), budget_left=9), now)
        core.pass_time(now)
        if job.rollback.in_flight is not None:
            break
    return [" / ".join(d.explain()[:5]) for d in job.rollback.decisions if d.kind == "rollback" and d.state == "sent"]


if __name__ == "__main__":
    sys.exit(not report(Path(sys.argv[1]), 2))
