"""Single keys from a terminal, without Enter; restores the terminal afterwards."""

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "enter",
    b"\x1b[D": "back",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b": "back",
    b"\x7f": "back",
    b"\r": "enter",
    b"\n": "enter",
    b"k": "up",
    b"j": "down",
    b"\x03": "q",
    b"\x04": "q",
}


class Keyboard:
    """Waits for a key."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._pressed = b""
        """Keys read but not returned yet: several arrive together when one is held down."""

    def wait(self, seconds: float) -> str:
        """The next key, by name or as a character; empty after `seconds` without one."""
        if self._descriptor is None:
            select.select([], [], [], seconds)
            return ""
        if not self._pressed:
            ready, _, _ = select.select([self._descriptor], [], [], seconds)
            if not ready:
                return ""
            self._pressed = os.read(self._descriptor, 64)
            if not self._pressed:  # the terminal is gone
                return "q"
        if len(self._pressed) > 1 and self._pressed[:1] == b"\x1b":
            key, self._pressed = self._pressed[:3], self._pressed[3:]
            if key not in SEQUENCES:  # another key or the mouse: of unknown length
                self._pressed = b""
            return SEQUENCES.get(key, "unknown")
        key, self._pressed = self._pressed[:1], self._pressed[1:]
        return SEQUENCES.get(key) or key.decode("latin-1").lower()


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    """The keyboard of a terminal; if standard input is none, a keyboard without keys."""
    if not sys.stdin.isatty():
        yield Keyboard(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
