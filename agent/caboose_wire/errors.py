"""The only error the wire package raises."""

from typing import Literal, get_args

Reason = Literal[
    "version",
    "type",
    "truncated",
    "oversize",
    "malformed",
    "unknown_peer",
    "layer_count",
    "shape",
    "duplicate_job",
    "identity",
    "capacity",
    "rate",
    "endless",
    "flood",
    "silent",
    "limit",
    "internal",
]
"""Why a frame or a peer is refused: a closed set, because each is a label value on a counter."""

REASONS: tuple[str, ...] = get_args(Reason)


class WireError(ValueError):
    """A message that cannot be sent or accepted; `reason` is the label it is counted under."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail
