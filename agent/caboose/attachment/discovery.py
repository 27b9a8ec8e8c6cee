"""Finds the model that an optimizer trains.

Design
------
The model is the outermost module that is *called* and holds the optimizer's parameters: so it is the DDP, FSDP or
compiled wrapper if there is one, and not a container that only holds the model. `CallWatcher` sees the calls by
replacing `torch.nn.Module.__call__`, and restores it as soon as the model of every optimizer is known, which is within
the first call of the first training forward; later steps cost nothing.

Why not torch's global forward hook: `torch.compile` warns about any global hook at each call, and `module.compile()`
traces it into the graph, where it breaks `fullgraph=True`. A replaced `__call__` runs outside of the compiled code.

A model that is used without being called (only its methods are) is searched among the live modules instead.
"""

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from caboose.observe.parts import ModelList, PartedModel
from caboose.observe.patches import Patches

Protect = Callable[[str, Callable[..., Any]], Callable[..., Any]]

MAX_CALLS = 5000
"""After so many calls the watcher stops, and the live modules are searched."""
MAX_MODELS = 16
"""Models of one optimizer."""


class Candidate:
    """The best module so far for one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.parameters = parameter_ids(optimizer)
        self.num_held = 0
        self.module: Callable[[], torch.nn.Module | None] = lambda: None

    @property
    def is_settled(self) -> bool:
        """Whether no other module could be better."""
        return self.num_held == len(self.parameters) or self.optimizer() is None


class CallWatcher:
    """Records which modules are called, until every expected optimizer has its model."""

    def __init__(self, protect: Protect) -> None:
        self._candidates: list[Candidate] = []
        self._patches = Patches()
        self._num_calls = 0
        self._is_on = False
        self._notice = protect("search for the model", self._called)

    def expect(self, optimizer: torch.optim.Optimizer) -> None:
        """Searches for the model of this optimizer from now on."""
        self._candidates = [c for c in self._candidates if c.optimizer() not in (None, optimizer)]
        self._candidates.append(Candidate(optimizer))
        self._num_calls = 0
        if not self._is_on:
            self._is_on = True
            self._patches.put(torch.nn.Module, "__call__", self._watch_calls)

    def models_of(self, optimizer: torch.optim.Optimizer) -> list[torch.nn.Module]:
        """The best module for an optimizer: called if one was, else alive; empty if no module holds its parameters.

        Where that holds only some of them (two critics with one optimizer), others of its class follow.
        """
        own = parameter_ids(optimizer)
        if not holds_parameters(optimizer):
            return []
        best, num_held = None, 0
        for candidate in self._candidates:
            if candidate.optimizer() is optimizer and (module := candidate.module()) is not None:
                best, num_held = module, candidate.num_held
        if num_held < len(own):
            roots = [(root, {id(p) for p in root.parameters()}) for root in _live_roots()]
            for root, ids in roots:
                if len(own & ids) > num_held:
                    best, num_held = root, len(own & ids)
            if best is not None:
                alike = [(root, ids) for root, ids in roots if type(root) is type(best)]
                return [best, *_others(own - {id(p) for p in best.parameters()}, alike)]
        return [] if best is None else [best]

    def forget(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Their models are known; ends the search if no other is looked for."""
        known = list(optimizers)
        self._candidates = [c for c in self._candidates if not any(c.optimizer() is each for each in known)]
        if all(candidate.is_settled for candidate in self._candidates):
            self.stop()

    def stop(self) -> None:
        """Restores `Module.__call__`."""
        self._is_on = False
        self._patches.undo()

    def _watch_calls(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._is_on and not torch.compiler.is_compiling():
                self._notice(module)
            return original(module, *args, **kwargs)

        return __call__

    def _called(self, module: torch.nn.Module) -> None:
        if not torch.is_grad_enabled():
            return  # an evaluation, perhaps of the model without its wrapper
        self._num_calls += 1
        parameters = {id(p) for p in module.parameters()}
        for candidate in self._candidates:
            held = len(parameters & candidate.parameters)
            if held > candidate.num_held:  # equal: the one called first is further outside
                candidate.num_held, candidate.module = held, weakref.ref(module)
        if self._num_calls >= MAX_CALLS or all(candidate.is_settled for candidate in self._candidates):
            self.stop()


def parameter_ids(optimizer: torch.optim.Optimizer) -> set[int]:
    """The identities of the tensors an optimizer updates."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def holds_parameters(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it updates what a module can hold, and not bare tensors alone."""
    return any(isinstance(p, torch.nn.Parameter) for group in optimizer.param_groups for p in group["params"])


def trained_with(
    model: torch.nn.Module, first: torch.optim.Optimizer, known: Iterable[torch.optim.Optimizer]
) -> list[torch.optim.Optimizer]:
    """The optimizers that share this model, the given one first.

    One that holds a parameter of another is left out: a wrapper's inner optimizer, or one of an earlier phase that
    still exists.
    """
    parameters = {id(p) for p in model.parameters()}
    chosen, taken = [first], parameter_ids(first)
    for optimizer in known:
        own = parameter_ids(optimizer)
        if own & parameters and not own & taken:
            chosen.append(optimizer)
            taken |= own
    return chosen


def _others(missing: set[int], roots: list[tuple[torch.nn.Module, set[int]]]) -> list[torch.nn.Module]:
    """The modules with most of the missing parameters, until none has any."""
    found: list[torch.nn.Module] = []
    while missing and roots and len(found) < MAX_MODELS:
        root, ids = max(roots, key=lambda pair: len(pair[1] & missing))
        if not ids & missing:
            break
        found.append(root)
        missing = missing - ids
    return found


def _live_roots() -> list[torch.nn.Module]:
    """Every module that is in no other; type() instead of isinstance() wakes no lazy proxy."""
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    modules = [module for module in modules if not isinstance(module, PartedModel | ModelList)]  # our own
    inner = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    return [module for module in modules if id(module) not in inner and "_parameters" in vars(module)]
