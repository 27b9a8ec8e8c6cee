"""Step stamps of evaluations: fields that name the step, or the checkpoint, whose weights were evaluated."""

from collections.abc import Iterator, Sequence

from caboose_daemon.offline.hypotheses.window import Evaluation

NAMES = ("checkpoint_step", "model_step", "weights_step", "evaluated_step", "global_step", "step")
MIN_STAMPS = 3


def stamps(evaluations: Sequence[Evaluation]) -> dict[str, list[tuple[int, float]]]:
    """For each field of such a name, the run's step and the stamp, of the evaluations that have it."""
    found: dict[str, list[tuple[int, float]]] = {}
    for one in evaluations:
        for name in NAMES:
            if name in one.others:
                found.setdefault(name, []).append((one.step, one.others[name]))
    return {name: rows for name, rows in found.items() if len(rows) >= MIN_STAMPS}


def moving(evaluations: Sequence[Evaluation]) -> Iterator[tuple[str, float, bool]]:
    """Each stamp: its name, its last value, and whether it moved over the last evaluations."""
    for name, rows in stamps(evaluations).items():
        last = [stamp for _, stamp in rows[-MIN_STAMPS:]]
        yield name, last[-1], len(set(last)) > 1


def lag(evaluations: Sequence[Evaluation]) -> tuple[str, float, float] | None:
    """The stamp that lags most: its name, how far it is behind the run now, and how far it was at first."""
    found = [
        (name, rows[-1][0] - rows[-1][1], rows[0][0] - rows[0][1])
        for name, rows in stamps(evaluations).items()
        if rows[-1][1] <= rows[-1][0]
    ]
    return max(found, key=lambda one: one[1], default=None)
