"""What a relay counts, and reports about itself."""

from dataclasses import dataclass

from caboose_daemon.relay.buffer import Buffer
from caboose_daemon.relay.downstream import Downstream
from caboose_daemon.version import __version__
from caboose_wire.bundles import RelayHealth

MAX_NAME = 256


@dataclass
class Counts:
    """Since the relay started."""

    name: str
    started: float
    num_messages: int = 0
    num_bundles: int = 0
    num_refused: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0

    def health(self, downstream: Downstream, buffer: Buffer, now: float) -> RelayHealth:
        """As it is sent upstream."""
        return RelayHealth(
            name=self.name[:MAX_NAME],
            version=__version__,
            started=self.started,
            depth=1 + max((health.depth for health in downstream.health()), default=0),
            num_ranks=len(downstream.numbers),
            num_messages=self.num_messages,
            num_bundles=self.num_bundles,
            received_bytes=self.received_bytes,
            sent_bytes=self.sent_bytes,
            num_dropped=buffer.num_dropped,
            num_refused=self.num_refused,
            buffered_bytes=buffer.num_bytes,
            buffered_seconds=max(0.0, buffer.waited(now)),
        )
