"""How commands print: everything that reaches a terminal passes here, without the control characters of others.

Design
------
Names, hosts, errors and notes come from the network, from journals and from other people's logs. An escape sequence in
one of them could move the cursor, change the window's title or fake a line. So the two ways to print, rich's console
and `echo`, replace control characters in text by their escaped form; what rich itself sends (colours, cursor of a live
screen) is no text and stays. Ruff forbids `click.echo` elsewhere, and a test rich's own console.
"""

import logging
from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from caboose_daemon.format import one_line, printable


class SafeConsole(Console):
    """rich's console, whose text has no control characters."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of something printable."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def echo(message: Any = "", *, err: bool = False, nl: bool = True, is_status: bool = False) -> None:
    """Prints a line; with `is_status` it overwrites the last one."""
    text = printable(str(message))
    click.echo(f"\r{text}" if is_status else text, err=err, nl=nl)  # noqa: TID251 - the one place


class LogFormatter(logging.Formatter):
    """Log lines: one message is one line, whatever it contains; a traceback follows in lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return printable(super().formatException(ei))


def log_to_stderr() -> None:
    """Sends the daemon's log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
