"""An incident's first witness in words, for a terminal and for the HTML report."""

from typing import Any

MAX_LAYERS = 3
MAX_RANKS = 8


def witness(found: dict[str, Any]) -> str:
    """The first witness in words."""
    ranks, layers, lead = found["ranks"], found["layers"], found["steps_before_loss"]
    parts = []
    if ranks:
        named = ", ".join(map(str, ranks[:MAX_RANKS])) + (" ..." if len(ranks) > MAX_RANKS else "")
        host = f" on {found['host']}" if found["host"] else ""
        parts.append(f"rank{'s' if len(ranks) > 1 else ''} {named}{host}")
    if layers:
        more = f" and {len(layers) - MAX_LAYERS} more" if len(layers) > MAX_LAYERS else ""
        parts.append(", ".join(layers[:MAX_LAYERS]) + more)
    if found["phase"]:
        parts.append(f"in the {found['phase']}")
    if lead:
        parts.append(f"{lead} step{'s' if lead > 1 else ''} before the loss moved")
    return ", ".join(parts)
