"""Colours and marks of severities and states, the same on every page of the terminal."""

from rich.text import Text

COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan", "ok": "green"}
MARKS = {"critical": "✗", "warning": "!", "info": "i", "ok": "✓"}
STATES = {"running": "green", "live": "green", "failed": "bold red", "lost": "yellow"} | dict.fromkeys(
    ("ended", "left", "known"), "dim"
)


def health(severity: str) -> Text:
    """A severity that is told apart without colours too."""
    return Text(f"{MARKS.get(severity, '?')} {severity}", COLOURS.get(severity, ""))


def state(name: str) -> Text:
    """How a job or a rank stands."""
    return Text(name, STATES.get(name, ""))
