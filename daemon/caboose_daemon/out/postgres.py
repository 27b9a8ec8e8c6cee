"""Sends incidents, diagnoses, decisions and notes to PostgreSQL, on a thread of its own.

Design
------
The journal is the queue (`store.backlog`): the pipeline never waits, a server that is away costs nothing but marks, and
what was written before a kill is sent after the next start. Rows are sent oldest first, in transactions; a mark goes
once its transaction is committed. So a row may be sent twice, which replaces it, and none is left out. A row that
PostgreSQL refuses for its content is counted, logged and passed over, because all others wait behind it.
"""

import logging
import sqlite3
import threading
from typing import TYPE_CHECKING

import psycopg

from caboose_daemon.config import StoreConfig
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.state import ExportCounts, State
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.outbox import CLOSE_SECONDS, one_line
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.store import postgres
from caboose_daemon.store.backlog import Backlog, Unsent
from caboose_wire import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("caboose.daemon")

NAME = "postgres"
BATCH = 200
"""Rows of one transaction."""
EVERY_SECONDS = 0.5
MAX_WAIT_SECONDS = 10.0
"""Between two attempts to reach a server that is away."""


class PostgresWriter:
    """What a daemon sends to the database that it shares with others."""

    def __init__(self, config: StoreConfig, backlog: Backlog, state: State) -> None:
        if config.password_file:
            postgres.read_password(config.password_file)
        self._config = config
        self._backlog = backlog
        self._state = state
        self._tally = state.exports.setdefault(NAME, ExportCounts())
        self._daemon = ""
        self._connection: postgres.Connection | None = None
        self._num_failures = 0
        """One after the other."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"caboose-{NAME}", daemon=True)

    def start(self, daemon: str) -> None:
        """Begins to send; `daemon` is how people know this one, host and port."""
        self._daemon = daemon
        self._thread.start()

    def close(self, patience: float = CLOSE_SECONDS) -> None:
        """Sends what the daemon wrote last, within `patience` seconds; the rest is sent after the next start."""
        self._ending.set()
        if self._thread.ident is None:
            self._backlog.close()
            return
        self._thread.join(timeout=patience)
        if self._state.store_backlog:
            logger.info("%s: %d rows wait for the next start", NAME, self._state.store_backlog)

    def _run(self) -> None:
        wait = 0.0
        while not self._ending.wait(wait):
            wait = self._attempt()
        if not self._num_failures:
            self._attempt()
        self._disconnect()
        self._backlog.close()

    def _attempt(self) -> float:
        """Sends what waits; how long to wait for more."""
        try:
            self._state.store_backlog = self._backlog.size
            self._advance()
        except (psycopg.Error, postgres.StoreError, sqlite3.Error, OSError) as error:
            self._tally.num_failed += 1
            self._num_failures += 1
            if self._num_failures == 1:
                logger.warning("%s: %s; what is to be sent waits in the journal", NAME, one_line(error))
            self._disconnect()
            return min(MAX_WAIT_SECONDS, EVERY_SECONDS * 2.0 ** min(self._num_failures, 10))
        if self._num_failures:
            logger.info("%s answers again", NAME)
            self._num_failures = 0
        return EVERY_SECONDS

    def _advance(self) -> None:
        if self._connection is None:
            self._connection = postgres.connect(self._config.postgres, self._config.password_file)
            self._backlog.aim(postgres.prepare(self._connection, self._backlog.journal, self._daemon))
        while rows := self._backlog.oldest(BATCH):
            self._send(self._connection, rows)
            self._backlog.sent([row.mark for row in rows])
            self._state.store_backlog = self._backlog.size

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, connection: postgres.Connection, rows: "Sequence[Unsent]") -> None:
        try:
            with connection.transaction():
                for row in rows:
                    self._put(connection, row)
            num = len(rows)
        except (psycopg.DataError, ArithmeticError, LookupError, TypeError, ValueError):
            num = sum(self._could_send(connection, row) for row in rows)
        self._tally.num_sent += num

    def _could_send(self, connection: postgres.Connection, row: Unsent) -> bool:
        """Sends one row alone."""
        try:
            with connection.transaction():
                self._put(connection, row)
        except (psycopg.DataError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            if not self._tally.num_dropped:
                logger.error("%s: a row of job %s is not sent: %s", NAME, row.job, one_line(error))
            self._tally.num_dropped += 1
            return False
        return True

    def _put(self, connection: postgres.Connection, row: Unsent) -> None:
        journal = self._backlog.journal
        match row.content:
            case Incident():
                postgres.put_incident(connection, journal, row.job, json_shapes.incident(row.content))
            case Decision():
                postgres.put_decision(connection, journal, row.job, json_shapes.decision(row.content))
            case Event():
                postgres.put_note(connection, journal, row.job, json_shapes.event(row.content))
            case None:
                """The retention deleted it."""
