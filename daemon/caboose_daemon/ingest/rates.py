"""Limits on how often peers may introduce themselves, and how many new jobs may begin.

Design
------
A Hello is the most expensive message (up to 8 MiB, decoded into a table of layers), and a new job is the most expensive
thing that it can ask for. Both are limited before the Hello is decoded or the job is made. A connection gets
`HELLO_BURST` Hellos and one more every `HELLO_SECONDS`: an agent sends one at its start, a few while its model is
discovered, and one when it is asked. New jobs are limited over all peers, because a flood may use many connections.
Whoever is refused is asked for its Hello again with its next report, so an honest job begins a little later.
"""

HELLO_BURST = 20
HELLO_SECONDS = 1.0
JOB_BURST = 200
JOB_SECONDS = 0.1


class Allowance:
    """A token bucket: `burst` at once, and one more every `seconds`."""

    __slots__ = ("_burst", "_left", "_seconds", "_since")

    def __init__(self, burst: int, seconds: float, now: float) -> None:
        self._burst, self._seconds = burst, seconds
        self._left, self._since = float(burst), now

    def take(self, now: float) -> bool:
        """Whether one more is allowed now."""
        self._left = min(self._burst, self._left + max(0.0, now - self._since) / self._seconds)
        self._since = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def is_full(self, now: float) -> bool:
        """Whether nothing was taken for so long that it need not be remembered."""
        return self._left + (now - self._since) / self._seconds >= self._burst


class Introductions:
    """The allowances of all peers."""

    def __init__(self, max_peers: int) -> None:
        self._max_peers = max_peers
        self._by_peer: dict[bytes, Allowance] = {}
        self._jobs = Allowance(JOB_BURST, JOB_SECONDS, 0.0)

    @property
    def num_known(self) -> int:
        """Peers whose allowance is remembered."""
        return len(self._by_peer)

    def allow_hello(self, peer: bytes, now: float) -> bool:
        """Whether this peer may introduce itself now."""
        known = self._by_peer.get(peer)
        if known is None:
            if len(self._by_peer) >= self._max_peers:
                self._prune(now)
            known = self._by_peer[peer] = Allowance(HELLO_BURST, HELLO_SECONDS, now)
        return known.take(now)

    def allow_job(self, now: float) -> bool:
        """Whether one more job may begin now."""
        return self._jobs.take(now)

    def _prune(self, now: float) -> None:
        """Forgets peers that have their whole allowance; all of them if none has, so that memory is bounded."""
        kept = {peer: known for peer, known in self._by_peer.items() if not known.is_full(now)}
        self._by_peer = kept if len(kept) < self._max_peers else {}
