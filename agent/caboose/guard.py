"""The one boundary between the agent and the training loop: nothing the agent does raises past it.

Design
------
Everything that the user's loop or torch calls goes through a function wrapped by `Guard.protect`. An exception there is
counted, and logged once per place and kind. After `MAX_FAILURES` of them the guard trips: the agent removes its hooks
and does nothing more; the heartbeats report that to the daemon. KeyboardInterrupt and SystemExit pass, and so does what
a signal handler of the program raises: Python runs it wherever the main thread is, which may be in here.

The guard also measures the agent's time on the training thread, because every entry passes here.

While torch traces a graph to compile, hooks do nothing: they could only break the graph, or become part of it.
"""

import contextlib
import functools
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

logger = logging.getLogger("caboose")

MAX_FAILURES = 10


@functools.lru_cache(maxsize=256)
def left_out(what: str) -> None:
    """Logs once that something cannot be read and is left out of the reports. It is not a failure of the agent."""
    logger.warning("caboose: %s cannot be read and is left out", what)


class Guard:
    """Catches, counts and times whatever the agent does on the user's threads."""

    def __init__(self, on_trip: Callable[[], None] = lambda: None) -> None:
        self.on_trip = on_trip
        """Called once, after too many failures."""
        self._logged: set[tuple[str, type[BaseException]]] = set()
        self.num_failures = 0
        self.is_tripped = False
        """Whether the agent has switched itself off."""
        self.is_off = False
        """Whether protected functions do nothing: tripped, or paused."""
        self.seconds = 0.0
        """Time spent inside since `take_seconds` was last called."""
        self.slowest = 0.0
        """The longest a single call has taken."""

    def switch_off(self) -> None:
        """For good."""
        self.is_tripped = self.is_off = True

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Protected functions do nothing within the block."""
        was_off, self.is_off = self.is_off, True
        try:
            yield
        finally:
            self.is_off = was_off or self.is_tripped

    def protect(self, where: str, function: Callable[..., Any]) -> "Protected":
        """The same function, but it returns None after a failure, and does nothing once tripped."""
        return Protected(self, where, function)

    def failed(self, where: str, error: Exception) -> None:
        """Counts a failure, logs it the first time, and trips after too many."""
        self.num_failures += 1
        kind = (where, type(error))
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning("caboose: %s failed, training continues without it: %r", where, error)
        if self.num_failures >= MAX_FAILURES and not self.is_tripped:
            self.switch_off()
            logger.warning("caboose: switched itself off after %d failures", self.num_failures)
            try:
                self.on_trip()
            except Exception as trip_error:  # noqa: BLE001 - as above
                logger.warning("caboose: could not remove its hooks: %r", trip_error)

    def take_seconds(self) -> float:
        """Time spent inside since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler raised it: Python gives a handler the frame that it interrupts, which called nothing."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted, handler = trace.tb_frame, trace.tb_next.tb_frame
        code = handler.f_code
        num_arguments = code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)
        values = [handler.f_locals.get(name) for name in code.co_varnames[: num_arguments + code.co_kwonlyargcount]]
        given = [each for value in values for each in (value if isinstance(value, tuple) else (value,))]
        if any(each is interrupted for each in given):
            return True
        trace = trace.tb_next
    return False


def _never() -> bool:
    return False


class Protected:
    """A function behind the guard, usable as a hook on a user's tensors and optimizers.

    torch leaves these hooks out of copies and pickles, but an optimizer may have its own way to write itself. There a
    hook must do nothing: pickled or copied, it becomes the exit of a null context, which accepts anything, and needs no
    Caboose where it is loaded.
    """

    __slots__ = ("_function", "_guard", "_is_compiling", "_where", "is_on")
    __torch_unserializable__ = True  # torch then drops it from pickled tensors without a warning

    def __init__(self, guard: Guard, where: str, function: Callable[..., Any]) -> None:
        self._guard = guard
        self._where = where
        self._function = function
        self.is_on = True
        """Whether it does anything at present."""
        # Looked up once: a hook is called several times a step. Before torch is imported nothing is compiled.
        self._is_compiling = getattr(getattr(sys.modules.get("torch"), "compiler", None), "is_compiling", _never)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, if the guard lets it, and times it."""
        if not self.is_on or self._is_compiling():
            return None
        guard = self._guard
        if guard.is_off:
            return None
        start = time.perf_counter()
        try:
            return self._function(*args, **kwargs)
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            guard.failed(self._where, error)
            return None
        finally:
            seconds = time.perf_counter() - start
            guard.seconds += seconds
            if seconds > guard.slowest:
                guard.slowest = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


Protect = Callable[[str, Callable[..., Any]], Protected]
"""A guard's `protect`."""
