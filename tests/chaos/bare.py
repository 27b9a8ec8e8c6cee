"""How long the ranks take to exit without Caboose: the measure for how much later they do with it."""

import shutil
from dataclasses import replace
from pathlib import Path

from chaos.launcher import Launcher
from chaos.plan import Episode
from chaos.proxy import network
from chaos.ranks import exit_seconds
from chaos.stage import Stage

STEPS = 20


def bare_exit_seconds(episode: Episode, directory: Path, launcher: Launcher) -> float:
    """The `exit_seconds` of a short run without Caboose."""
    shutil.rmtree(directory, ignore_errors=True)
    plain = replace(episode, fault="", intent="advise", bad_batch=0, exit_code=0)
    with network(0) as proxy:
        stage = Stage(plain, directory, proxy, launcher)
        try:
            stage.start_job(CABOOSE_DISABLED="1")
            is_training = stage.wait_until(lambda: stage.ranks.step() >= STEPS, 60)
            stage.let_end()
            if not is_training or stage.wait_for_exit(30) != 0:
                raise RuntimeError(f"the run without Caboose failed: see {directory / 'job.log'}")
            lives = stage.ranks.lives
            stage.wait_until(lambda: all(life.exited for life in lives), 5)
        finally:
            stage.close()
    return exit_seconds(lives)
