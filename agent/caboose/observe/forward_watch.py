"""Whose calls are the forward: the attached models, or the modules inside them where a framework calls those.

Design
------
A LightningModule on one device is never called: its `training_step` is, which calls `self.model`. So when a step has
ended without a call, the modules in the attached ones are watched as well, and after another such step those in them;
a list or a dictionary of modules is never called itself, those in it are. The first call settles it: from then on the
modules as far out as the one that was called are watched, and no others, so that no forward is counted twice.
"""

from collections.abc import Iterator, Sequence, Set

import torch

from caboose.observe.model_calls import After, Before, CallWatch

MOST_INSIDE = 2
"""How far inside of the attached modules others are watched: each watch costs something at every call."""
MAX_WATCHES = 64
"""Of one level."""


class ForwardWatch:
    """The watches on the calls that are the forward of a step."""

    def __init__(self, modules: Sequence[torch.nn.Module], before: Before, after: After) -> None:
        self._before, self._after = before, after
        self._levels = [self._watch(modules)]
        """From the outside in; one once a module was called."""
        self._is_empty_inside = False
        """Whether there is nothing further in to watch, or too much."""

    def _watch(self, modules: Sequence[torch.nn.Module]) -> list[CallWatch]:
        return [CallWatch(module, self._before, self._after) for module in modules]

    def __iter__(self) -> Iterator[CallWatch]:
        for level in self._levels:
            yield from level

    @property
    def modules(self) -> tuple[torch.nn.Module, ...]:
        """Those whose calls are seen."""
        return tuple(watch.module for watch in self)

    @property
    def is_settled(self) -> bool:
        """Whether only modules of one level are watched."""
        return len(self._levels) == 1

    def turn(self, *, on: bool) -> None:
        """Whether calls are seen from now on."""
        for watch in self:
            watch.turn(on=on)

    def look_inside(self, held: Set[int]) -> bool:
        """No module was called in a step: whether modules inside, with a parameter of these, are watched now."""
        if len(self._levels) > MOST_INSIDE or self._is_empty_inside:
            return False
        watched = set(map(id, self.modules))
        inside = [m for w in self._levels[-1] for m in _called_inside(w.module, held) if id(m) not in watched]
        inside = _outermost(inside)
        self._is_empty_inside = not 0 < len(inside) <= MAX_WATCHES
        if not self._is_empty_inside:
            self._levels.append(self._watch(inside))
        return not self._is_empty_inside

    def settle(self, called: torch.nn.Module) -> None:
        """The first of the modules is called; none of another level is watched any more."""
        for level in self._levels:
            if all(watch.module is not called for watch in level):
                for watch in level:
                    watch.remove()
            else:
                kept = level
        self._levels = [kept]

    def remove(self) -> None:
        """Ends all of them."""
        for watch in self:
            watch.remove()


def _called_inside(module: torch.nn.Module, held: Set[int]) -> Iterator[torch.nn.Module]:
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            yield from _called_inside(child, held)
        elif any(id(p) in held for p in child.parameters()):
            yield child


def _outermost(modules: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Those that are in no other one: a part may have a second name beside the whole."""
    parts = {id(part) for module in modules for part in module.modules() if part is not module}
    return [module for module in dict.fromkeys(modules) if id(module) not in parts]
