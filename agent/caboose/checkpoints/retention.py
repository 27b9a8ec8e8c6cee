"""Which checkpoints may go: a pure decision over steps and marks."""

from collections.abc import Collection, Sequence


def superseded(
    steps: Sequence[int],
    *,
    keep: int,
    wanted: Collection[int] = (),
    tainted: Collection[int] = (),
) -> list[int]:
    """Steps whose checkpoints are no longer needed; `steps` are in the order in which they were saved.

    That order counts, not the number: a run that resumed from an old one saves lower numbers than it left behind.

    Kept are the `keep` newest, those that are `wanted` (the best, the newest that is proven healthy, the pinned), and
    always the newest that is not tainted: a run that went bad some time ago fills the newest places with what nobody
    wants to go back to.
    """
    newest_first = list(reversed(steps))
    kept = {*newest_first[:keep], *wanted}
    kept.update([step for step in newest_first if step not in tainted][:1])
    return [step for step in steps if step not in kept]
