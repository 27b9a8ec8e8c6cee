"""Options of both ends of a connection, so that a peer that is gone ends nothing but its connection.

Design
------
libzmq 4.3.5 has an assertion that aborts the process: a connection whose receive queue is full is not read any more; if
its peer is gone by then, the next heartbeat (of this end by a timer, or of the peer from what was received) is sent on
a connection that has failed. So the queue has no limit here, and neither end sends heartbeats. What they were for is
left to the kernel: a peer that no longer answers is found by TCP's keep-alive, or by what it does not acknowledge. What
comes in is limited otherwise: `report.connection` of the agent, `app.report_connections` of the daemon.
"""

from typing import Any

IDLE_SECONDS = 5
PROBE_SECONDS = 2
MAX_PROBES = 3
UNACKNOWLEDGED_MS = 11_000
"""As long as the keep-alive takes."""


def outlast(socket: Any) -> None:
    """Sets the options of a ZeroMQ socket, before it is bound or connected."""
    socket.rcvhwm = 0
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = IDLE_SECONDS
    socket.tcp_keepalive_intvl = PROBE_SECONDS
    socket.tcp_keepalive_cnt = MAX_PROBES
    socket.tcp_maxrt = UNACKNOWLEDGED_MS
