"""A campaign: the episodes of one seed, as many as fit into the given minutes; and its results in a file.

The file is written after each episode. A campaign that was interrupted goes on where it stopped.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from chaos.bare import bare_exit_seconds
from chaos.episode import Result, run
from chaos.faults import FAULTS
from chaos.launcher import Launcher, launcher
from chaos.plan import plan
from chaos.reference import Reference, reference

NAMES = tuple(FAULTS)


class Campaign:
    """One seed's results."""

    def __init__(self, seed: int, directory: Path, say: Callable[[str], None]) -> None:
        self.seed = seed
        self._directory = directory
        self._say = say
        self.file = directory / f"seed-{seed}.json"
        self.results: list[Result] = []
        self.bare: dict[str, float] = {}
        if self.file.exists():
            kept = json.loads(self.file.read_text())
            self.bare = kept["bare_exit_seconds"]
            self.results = [Result(**row) for row in kept["episodes"]]

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)

    def run(self, minutes: float) -> None:
        """Goes on until the episodes took so long together."""
        done = {result.plan["number"] for result in self.results}
        number = 0
        with self._helpers() as helpers:
            while self.seconds < 60 * minutes:
                if number not in done:
                    self._episode(number, *helpers)
                number += 1

    def again(self, number: int) -> Result:
        """One episode once more; its directory stays."""
        with self._helpers() as helpers:
            return self._episode(number, *helpers, is_kept=True)

    @contextmanager
    def _helpers(self) -> Iterator[tuple[Reference, Launcher]]:
        with launcher(self._directory) as warm, reference(self._directory) as ranks:
            yield ranks, warm

    def _episode(self, number: int, ranks: Reference, warm: Launcher, *, is_kept: bool = False) -> Result:
        episode = plan(self.seed, number, NAMES)
        kind = f"{episode.sharding} {'cold' if episode.is_cold else 'warm'}"

        def bare_exit(is_again: bool) -> float:
            if is_again or kind not in self.bare:
                self.bare[kind] = bare_exit_seconds(episode, self._directory / "bare", warm)
            return self.bare[kind]

        bare_exit(False)
        directory = self._directory / f"seed-{self.seed}-episode-{number}"
        result = run(episode, directory, ranks, warm, bare_exit)
        self.results = [r for r in self.results if r.plan["number"] != number] + [result]
        self._save()
        self._say(line(result))
        if result.is_passed and not is_kept:
            shutil.rmtree(directory)
        elif not result.is_passed:
            for problem in result.problems:
                self._say(f"    {problem}")
            self._say(f"    logs: {directory}")
            self._say(f"    again: make chaos SEED={self.seed} ARGS='--episode {number}'")
        return result

    def _save(self) -> None:
        body = {
            "seed": self.seed,
            "bare_exit_seconds": self.bare,
            "episodes": [asdict(result) for result in sorted(self.results, key=lambda r: r.plan["number"])],
        }
        self._directory.mkdir(parents=True, exist_ok=True)
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(body, indent=1))
        part.replace(self.file)


def line(result: Result) -> str:
    """One episode in one line."""
    plan_ = result.plan
    rollbacks = f"{result.num_committed} committed, {result.num_aborted} aborted"
    verdict = "ok" if result.is_passed else "FAILED"
    return (
        f"seed {plan_['seed']} episode {plan_['number']:3}: {plan_['fault']:18} {plan_['sharding']:5} "
        f"{plan_['intent']:6} {rollbacks}, {result.num_hits} hits, {result.seconds:4.1f} s: {verdict}"
    )


def table(results: Iterable[Result]) -> str:
    """Markdown: one row per fault."""
    rows = list(results)
    lines = [
        "| fault | episodes | hits | committed rollbacks | aborted rollbacks | failures |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in (*NAMES, "all"):
        some = [result for result in rows if name in ("all", result.plan["fault"])]
        cells = (
            len(some),
            sum(result.num_hits for result in some),
            sum(result.num_committed for result in some),
            sum(result.num_aborted for result in some),
            sum(not result.is_passed for result in some),
        )
        lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
