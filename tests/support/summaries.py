"""What a finding's summary must contain, without fixing its wording."""


def lacks(summary: str, *parts: str) -> list[str]:
    """The parts (numbers, ranks, layers) that a summary does not contain."""
    return [part for part in parts if part not in summary]
