"""What a finding's summary, or a cause's evidence, must contain, without fixing its wording."""

from collections.abc import Iterable


def lacks(text: str | Iterable[str], *parts: str) -> list[str]:
    """The parts (numbers, ranks, layers) that a sentence, or several together, do not contain."""
    whole = text if isinstance(text, str) else " | ".join(text)
    return [part for part in parts if part not in whole]
