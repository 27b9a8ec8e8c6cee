"""The calls of a watched model: what is done before and after each of them, without a trace in the model itself.

Design
------
A hook on a module is part of it: of its pickles and deep copies, of an average of its weights, of what
`torch.jit.script` compiles. So nothing is put on the module. Its class gets a `__call__` that acts for watched modules
only, found by identity, and passes every other call on; with the last watched module of a class, its own `__call__` is
restored. The module, its attributes and its hooks are as without the agent, so whatever writes or copies them gives the
same bytes. A copy is another object, and is not watched.

Why not the others: torch's global hooks cost every module of the process a slower call, and `torch.compile` warns about
them or traces them; a hook that pickles as nothing still leaves its key; `__getstate__` or `__reduce_ex__` of the class
are not asked by a model that copies itself.

The call is passed on with `super()`, so that whoever replaces `torch.nn.Module.__call__` (torch.fx, `discovery`) is
still called. While torch traces a graph to compile, only that is left, which it inlines. A class that is pickled by
value, as cloudpickle does with those of a script, takes the function along but no watched module (`_Watched`).

All of it runs on the training thread; calls may be nested.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

Before = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], Any]
After = Callable[[torch.nn.Module], Any]


def _nothing(*_: Any) -> None:
    pass


class CallWatch:
    """What is done at the calls of one module, until it is removed. Neither callable may raise."""

    def __init__(self, module: torch.nn.Module, before: Before, after: After = _nothing) -> None:
        self.module = module
        self.before = before
        self.after = after
        self.is_on = True
        self.last_call = LastCall()
        """Of the calls while it is turned off."""
        self._calls = _CallsOfClass.of(type(module))
        self._calls.add(self)

    def turn(self, *, on: bool) -> None:
        """Whether calls are seen from now on; while they are not, the last one is kept."""
        if on is not self.is_on:
            self.is_on = on
            self.last_call.args = ()
            self._calls.note_turned(self.module)

    def remove(self) -> None:
        """Ends it; calling it again does nothing."""
        self._calls.discard(self)


def num_watches(module: torch.nn.Module) -> int:
    """How many watches this module has."""
    calls = _replaced.get(type(module))
    return 0 if calls is None else calls.num_watches(module)


@contextlib.contextmanager
def paused(module: torch.nn.Module) -> Iterator[None]:
    """Calls of this module within the block are not seen."""
    was_paused = id(module) in _paused
    _paused.add(id(module))
    try:
        yield
    finally:
        if not was_paused:
            _paused.discard(id(module))


_paused: set[int] = set()


class _WatchedCalls:
    """The watches of one module that are turned on."""

    __slots__ = ("_watches",)

    def __init__(self, watches: Sequence[CallWatch]) -> None:
        self._watches = watches

    def call(
        self, module: torch.nn.Module, pass_on: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if id(module) in _paused:
            return pass_on(*args, **kwargs)
        for watch in self._watches:
            watch.before(module, args, kwargs)
        try:
            return pass_on(*args, **kwargs)
        finally:  # also if it raises, and at an interrupt
            for watch in self._watches:
                watch.after(module)


class LastCall:
    """The arguments of a module's last call, while its watches are turned off: all that is done then."""

    __slots__ = ("args",)

    def __init__(self) -> None:
        self.args: tuple[Any, ...] | dict[str, Any] = ()
        """Those by name where there are no others."""

    def call(
        self, module: torch.nn.Module, pass_on: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not _paused or id(module) not in _paused:
            self.args = args or kwargs
        return pass_on(*args, **kwargs)


class _Watched(dict[int, _WatchedCalls | LastCall]):
    """By the identity of their modules, which their watches keep alive. Pickled, it is an empty dictionary."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ()


class _CallsOfClass:
    """The replaced `__call__` of one class."""

    def __init__(self, owner: type[torch.nn.Module]) -> None:
        self._owner = owner
        self._own = vars(owner).get("__call__")
        """The class's own, if it has one."""
        self._watches: dict[int, Sequence[CallWatch]] = {}
        """Of each module, by its identity."""
        self._watched = _Watched()
        """Modules with watches. Of those that are turned off the last call is kept; other calls are passed on."""
        self._replacement = _passing_on(owner, self._watched, self._own)
        setattr(owner, "__call__", self._replacement)  # noqa: B010 - to mypy a method, which cannot be assigned

    @classmethod
    def of(cls, owner: type[torch.nn.Module]) -> "_CallsOfClass":
        if owner not in _replaced:
            _replaced[owner] = cls(owner)
        return _replaced[owner]

    def num_watches(self, module: torch.nn.Module) -> int:
        return len(self._watches.get(id(module), ()))

    def add(self, watch: CallWatch) -> None:
        self._place(watch.module, (*self._watches.get(id(watch.module), ()), watch))

    def note_turned(self, module: torch.nn.Module) -> None:
        """One of its watches was turned on or off."""
        if id(module) in self._watches:
            self._place(module, self._watches[id(module)])

    def discard(self, watch: CallWatch) -> None:
        watches = self._watches.get(id(watch.module), ())
        self._place(watch.module, tuple(other for other in watches if other is not watch))
        # Where someone else has wrapped it since, it stays, and only passes calls on.
        if not self._watches and vars(self._owner).get("__call__") is self._replacement:
            self._restore()

    def _place(self, module: torch.nn.Module, watches: Sequence[CallWatch]) -> None:
        active = [watch for watch in watches if watch.is_on]
        self._watches[id(module)] = watches
        if active:
            self._watched[id(module)] = _WatchedCalls(active)
        elif watches:
            self._watched[id(module)] = watches[0].last_call
        else:
            self._watched.pop(id(module), None)
            del self._watches[id(module)]

    def _restore(self) -> None:
        del _replaced[self._owner]
        if self._own is None:
            del self._owner.__call__
        else:
            setattr(self._owner, "__call__", self._own)  # noqa: B010 - as above


_replaced: dict[type[torch.nn.Module], _CallsOfClass] = {}


def _passing_on(owner: Any, watched: _Watched, own: Any) -> Callable[..., Any]:
    """The new `__call__`. It uses no name of this module, which may be missing where its class is unpickled."""
    is_compiling = torch.compiler.is_compiling

    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls = None if is_compiling() else watched.get(id(self))
        if calls is None:
            return super(owner, self).__call__(*args, **kwargs)
        return calls.call(self, super(owner, self).__call__, args, kwargs)

    def call_own(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls = None if is_compiling() else watched.get(id(self))
        if calls is None:
            return own(self, *args, **kwargs)
        return calls.call(self, own.__get__(self), args, kwargs)

    return __call__ if own is None else functools.wraps(own)(call_own)
