"""Which optimizers a loss is for: those whose parameters its graph reaches.

Design
------
The graph of a loss is walked from its root when its backward begins, over at most `MAX_NODES` nodes, on the host alone.
That is done for the first `LEARNED` losses of each place in the user's code; afterwards the place is known, until an
optimizer that is not watched steps, for which that leaves no loss. A place that reached different optimizers (one line
in a loop over models) tells nothing: such a loss belongs to whichever of them steps next. So does one whose graph shows
no parameter, as behind a reentrant checkpoint or in FSDP2.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from caboose.observe.sites import Site

MAX_NODES = 50_000
MAX_SITES = 256
LEARNED = 3

Reach = frozenset[int]
"""Keys of optimizers."""


@dataclass(slots=True)
class _Place:
    reach: Reach | None
    """None where it differs, or nothing is known."""
    num_seen: int = 1


class LossOwners:
    """The optimizers that each loss reaches."""

    def __init__(self, holders: Callable[[], Mapping[int, Reach]]) -> None:
        """`holders` returns the optimizers that hold each parameter, by the parameter's identity."""
        self._holders = holders
        self._held: Mapping[int, Reach] | None = None
        self._places: dict[Site, _Place] = {}

    def forget(self) -> None:
        """The optimizers have changed: what was learned is learned again."""
        self._held = None
        self._places.clear()

    def unlearn(self, site: Site) -> None:
        """This place is for others too: it tells nothing."""
        if site in self._places:
            self._places[site].reach = None

    def reach(self, roots: Iterable[Any], site: Site) -> tuple[Reach | None, bool]:
        """The optimizers that the loss at this place reaches (None where that is not known); whether that was seen."""
        place = self._places.get(site)
        if place is not None and (place.num_seen >= LEARNED or place.reach is None):
            return place.reach, False
        if self._held is None:
            self._held = self._holders()
        found = _walk(roots, self._held)
        if place is not None:
            place.num_seen += 1
            if place.reach != found:
                place.reach = None
        elif len(self._places) < MAX_SITES:
            self._places[site] = _Place(found)
        return found, True


def _walk(roots: Iterable[Any], held: Mapping[int, Reach]) -> Reach | None:
    waiting = [root.grad_fn for root in roots if isinstance(root, torch.Tensor) and root.grad_fn is not None]
    seen = set(waiting)
    found: set[int] = set()
    while waiting and len(seen) <= MAX_NODES:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            found |= held.get(id(variable), frozenset())
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
    return frozenset(found) if found and not waiting else None
