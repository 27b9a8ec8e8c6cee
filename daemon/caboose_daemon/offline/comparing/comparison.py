"""Several runs compared: numbers, settings and conclusions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caboose_daemon.offline.comparing.descent import Descent, against_size, over_time
from caboose_daemon.offline.comparing.evidence import Compared, Statement, statements
from caboose_daemon.offline.comparing.measures import Measures, common_loss, common_step, measure
from caboose_daemon.offline.comparing.settings import RunSettings, side_by_side
from caboose_daemon.offline.runs.run import Run
from caboose_daemon.out.api import json_shapes

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Comparison:
    """The runs, in the order given."""

    letters: tuple[str, ...]
    runs: tuple[Run, ...]
    measures: tuple[Measures, ...]
    settings: RunSettings
    step: int
    goal: float | None
    statements: tuple[Statement, ...]
    descent: Descent | None
    are_repeats: bool = False
    """No known setting differs except the seed, so no run is called best."""

    def as_object(self) -> dict[str, Any]:
        """For `--json`; non-finite numbers are strings, as in the API."""
        rows = [
            {
                "run": letter,
                "name": run.name,
                "source": run.source,
                "where": run.where,
                "state": run.state,
                "steps_per_row": run.steps_per_row,
                **_plain(numbers.as_object()),
                "settings": json_shapes.settings(dict(run.settings)),
                "cannot_see": list(run.cannot_see),
            }
            for letter, run, numbers in zip(self.letters, self.runs, self.measures, strict=True)
        ]
        differ = {name: [_plain(table.get(name)) for table in self.settings.tables] for name in self.settings.differing}
        return {
            "common_step": self.step,
            "common_loss": self.goal,
            "runs": rows,
            "differing": differ,
            "num_equal_settings": self.settings.num_equal,
            "unknown_settings": self.settings.unknown,
            "statements": [vars(statement) for statement in self.statements],
            "validation_against_size": None if self.descent is None else _plain(self.descent.as_object()),
        }


def compare(runs: Sequence[Run]) -> Comparison:
    """The comparison of two or more runs."""
    letters = tuple(
        LETTERS[i] if len(runs) <= len(LETTERS) else f"{LETTERS[i % 26]}{i // 26}" for i in range(len(runs))
    )
    step, goal = common_step(runs), common_loss(runs)
    measures = tuple(measure(run, step, goal) for run in runs)
    settings = side_by_side(runs, measures)
    compared = Compared(letters, measures, settings, step, goal)
    found = list(statements(compared))
    turned = [over_time(letter, run) for letter, run in zip(letters, runs, strict=True)]
    found += [Statement("result", text) for text in turned if text]
    descent = against_size(letters, runs, measures)
    are_repeats = compared.are_repeats(*range(len(runs)))
    return Comparison(letters, tuple(runs), measures, settings, step, goal, tuple(found), descent, are_repeats)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return json_shapes.number(value) if isinstance(value, float) and not math.isfinite(value) else value
