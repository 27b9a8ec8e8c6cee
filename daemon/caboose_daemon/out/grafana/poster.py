"""Posts incidents to Grafana: an annotation when one opens, its end when it closes; and rollbacks.

Design
------
The target of an outbox: called on the outbox's thread, one incident at a time. It asks Grafana whether the annotation
exists, so a restarted daemon, a `caboose grafana push` and this do not create duplicates, and an annotation that could
not be posted when the incident opened is posted when it changes. An unchanged annotation is not sent again.
"""

from collections import OrderedDict

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.grafana import annotations
from caboose_daemon.out.grafana.annotations import Annotation
from caboose_daemon.out.grafana.connection import GrafanaConnection

MAX_REMEMBERED = 1000


class Poster:
    """Writes annotations for incidents, rollbacks and new attempts."""

    name = "grafana"

    def __init__(self, connection: GrafanaConnection) -> None:
        self._connection = connection
        self._posted: OrderedDict[str, Annotation] = OrderedDict()

    def take(self, item: Incident | Annotation) -> None:
        """Creates or updates its annotation."""
        ours = item if isinstance(item, Annotation) else annotations.of_incident(item.job, json_shapes.incident(item))
        if self._posted.get(ours.key) == ours:
            return
        found = annotations.find(self._connection, ours.key).get((ours.key, ours.start))
        if found is None or not annotations.is_current(ours, found):
            annotations.write(self._connection, ours, found)
        self._posted[ours.key] = ours
        self._posted.move_to_end(ours.key)
        if len(self._posted) > MAX_REMEMBERED:
            self._posted.popitem(last=False)

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()
