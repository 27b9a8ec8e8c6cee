"""The schedulers that a call was given: one, several or none, and from here on a list."""

from typing import Any


def listed(given: Any, call: str) -> list[Any]:
    """All of them; TypeError says what is none, in the words of the call it was given to."""
    if given is None:
        return []
    is_one = not isinstance(given, list | tuple)
    schedulers = [given] if is_one else list(given)
    for number, scheduler in enumerate(schedulers):
        if not hasattr(scheduler, "state_dict"):
            which = f"got {type(scheduler).__name__}" if is_one else f"element {number} is a {type(scheduler).__name__}"
            raise TypeError(f"{call}(scheduler=...): expected an LR scheduler or a list of them, {which}")
    return schedulers
