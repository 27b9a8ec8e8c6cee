"""What the relays report about themselves, for metrics.

Design
------
There may be thousands of relays, and each restart makes another: only sums, counts and the worst are kept for long.
Counters of a relay begin at 0 with each of its starts; what they rose by is added here, so these never fall.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from caboose_wire.bundles import RelayHealth

SILENT_SECONDS = 15.0
"""After which a relay counts as gone: seven times as long as between two of its reports."""
MAX_RELAYS = 20_000


@dataclass
class RelayStates:
    """The relays that were heard of lately, and what all of them add up to."""

    num_ranks: int = 0
    """Ranks that report through relays."""
    num_ignored: int = 0
    """Messages of ranks beyond those that one relay may have."""
    num_dropped: int = 0
    """Messages that relays dropped because their buffers were full."""
    _known: dict[tuple[str, float], tuple[RelayHealth, float]] = field(default_factory=dict)

    def note(self, healths: Sequence[RelayHealth], now: float) -> None:
        """Takes in what relays reported."""
        for health in healths:
            key = (health.name, health.started)
            before = self._known.pop(key, None)
            self.num_dropped += max(0, health.num_dropped - (0 if before is None else before[0].num_dropped))
            self._known[key] = (health, now)  # the last heard of at the end
        while self._known and self._is_over(next(iter(self._known.values()))[1], now):
            del self._known[next(iter(self._known))]

    def _is_over(self, seen: float, now: float) -> bool:
        return now - seen > SILENT_SECONDS or len(self._known) > MAX_RELAYS

    def live(self, now: float) -> list[RelayHealth]:
        """The relays that are running; on any thread."""
        return [health for health, seen in list(self._known.values()) if now - seen <= SILENT_SECONDS]
