"""Colours and marks of severities and states in the terminal."""

from rich.text import Text

COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan", "ok": "green"}
MARKS = {"critical": "✗", "warning": "!", "info": "i", "ok": "✓"}
STATES = {
    **dict.fromkeys(("running", "live"), "green"),
    **dict.fromkeys(("crashed", "failed"), "bold red"),
    **dict.fromkeys(("lost", "silent", "cancelled", "terminated"), "yellow"),
    **dict.fromkeys(("ended", "left", "known"), "dim"),
}


def health(severity: str, word: str = "") -> Text:
    """A severity with its mark, so that it needs no colour."""
    return Text(f"{MARKS.get(severity, '?')} {word or severity}", COLOURS.get(severity, ""))


def state(name: str) -> Text:
    return Text(name, STATES.get(name, ""))
