"""The common database of several daemons in PostgreSQL: its tables, what is written to them, and what is read back.

Design
------
A row belongs to a journal, by the journal's identity, so that daemons whose jobs have the same name do not overwrite
each other. A row that is sent twice replaces itself: whoever is unsure whether a row arrived sends it again. Each row
has its main values in columns, for SQL and for people, and what the API answers about it as `body`. Nothing is deleted
here: how long a fleet keeps its history is for its owner to decide.

PostgreSQL stores no NUL in texts; it becomes U+FFFD.
"""

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow, dict_row
from psycopg.types.json import Jsonb

Json = dict[str, Any]
Connection = psycopg.Connection[TupleRow]
TIMEOUTS = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "15000",
    "application_name": "caboose",
    "options": "-c statement_timeout=15s -c lock_timeout=10s",
}
"""Where the address does not set them: a server that hangs is given up."""
VERSION = 1
MAX_PER_JOB = 200
"""Incidents of a job that are read back; as many as a daemon keeps in memory."""
MAX_NOTES = 500
TABLES: tuple[LiteralString, ...] = (
    "CREATE TABLE caboose_store (id text PRIMARY KEY, version integer NOT NULL)",
    "CREATE TABLE caboose_journals (journal text PRIMARY KEY, daemon text NOT NULL, seen timestamptz NOT NULL)",
    """CREATE TABLE caboose_incidents (
        journal text NOT NULL REFERENCES caboose_journals, job text NOT NULL, number bigint NOT NULL,
        opened timestamptz NOT NULL, closed timestamptz, attempt bigint NOT NULL, onset_step bigint NOT NULL,
        rule text NOT NULL, severity text NOT NULL, state text NOT NULL, summary text NOT NULL, body jsonb NOT NULL,
        PRIMARY KEY (journal, job, number, opened))""",
    "CREATE INDEX caboose_incidents_by_time ON caboose_incidents (opened)",
    """CREATE TABLE caboose_diagnoses (
        journal text NOT NULL, job text NOT NULL, number bigint NOT NULL, opened timestamptz NOT NULL,
        place integer NOT NULL, cause text NOT NULL, title text NOT NULL, confidence double precision NOT NULL,
        first_fix text NOT NULL, PRIMARY KEY (journal, job, number, opened, place),
        FOREIGN KEY (journal, job, number, opened) REFERENCES caboose_incidents ON DELETE CASCADE)""",
    "CREATE INDEX caboose_diagnoses_by_cause ON caboose_diagnoses (cause)",
    """CREATE TABLE caboose_decisions (
        journal text NOT NULL REFERENCES caboose_journals, job text NOT NULL, number bigint NOT NULL,
        made timestamptz NOT NULL, kind text NOT NULL, state text NOT NULL, summary text NOT NULL, body jsonb NOT NULL,
        PRIMARY KEY (journal, job, number, made))""",
    """CREATE TABLE caboose_notes (
        journal text NOT NULL REFERENCES caboose_journals, job text NOT NULL, attempt bigint NOT NULL,
        step bigint NOT NULL, kind text NOT NULL, digest text NOT NULL, declared timestamptz NOT NULL,
        body jsonb NOT NULL, PRIMARY KEY (journal, job, attempt, step, kind, digest))""",
)
INCIDENT: LiteralString = """
    INSERT INTO caboose_incidents VALUES (%(journal)s, %(job)s, %(number)s, to_timestamp(%(opened)s),
        to_timestamp(%(closed)s), %(attempt)s, %(onset_step)s, %(rule)s, %(severity)s, %(state)s, %(summary)s, %(body)s)
    ON CONFLICT (journal, job, number, opened) DO UPDATE SET closed = excluded.closed, attempt = excluded.attempt,
        onset_step = excluded.onset_step, rule = excluded.rule, severity = excluded.severity, state = excluded.state,
        summary = excluded.summary, body = excluded.body"""
NO_CAUSES: LiteralString = """
    DELETE FROM caboose_diagnoses WHERE (journal, job, number, opened)
        = (%(journal)s, %(job)s, %(number)s, to_timestamp(%(opened)s))"""
CAUSE: LiteralString = """
    INSERT INTO caboose_diagnoses VALUES (%(journal)s, %(job)s, %(number)s, to_timestamp(%(opened)s), %(place)s,
        %(cause)s, %(title)s, %(confidence)s, %(first_fix)s)"""
DECISION: LiteralString = """
    INSERT INTO caboose_decisions VALUES (%(journal)s, %(job)s, %(number)s, to_timestamp(%(made)s), %(kind)s, %(state)s,
        %(summary)s, %(body)s)
    ON CONFLICT (journal, job, number, made) DO UPDATE SET kind = excluded.kind, state = excluded.state,
        summary = excluded.summary, body = excluded.body"""
NOTE: LiteralString = """
    INSERT INTO caboose_notes VALUES (%(journal)s, %(job)s, %(attempt)s, %(step)s, %(kind)s, %(digest)s,
        to_timestamp(%(declared)s), %(body)s)
    ON CONFLICT (journal, job, attempt, step, kind, digest) DO UPDATE
        SET declared = least(caboose_notes.declared, excluded.declared)"""
JOURNAL: LiteralString = """
    INSERT INTO caboose_journals VALUES (%s, %s, now())
    ON CONFLICT (journal) DO UPDATE SET daemon = excluded.daemon, seen = excluded.seen"""
JOBS: LiteralString = """
    SELECT job, journal, daemon, extract(epoch FROM max(latest))::float8 AS latest FROM (
        SELECT journal, job, max(opened) AS latest FROM caboose_incidents GROUP BY 1, 2
        UNION ALL SELECT journal, job, max(made) FROM caboose_decisions GROUP BY 1, 2
        UNION ALL SELECT journal, job, max(declared) FROM caboose_notes GROUP BY 1, 2
    ) AS found JOIN caboose_journals USING (journal) GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2"""
INCIDENTS: LiteralString = """
    SELECT body FROM caboose_incidents WHERE journal = %s AND job = %s
    ORDER BY closed IS NOT NULL, number DESC LIMIT %s"""
DECISIONS: LiteralString = (
    "SELECT body FROM caboose_decisions WHERE journal = %s AND job = %s ORDER BY made DESC, number DESC"
)
NOTES: LiteralString = """
    SELECT body FROM (
        SELECT * FROM caboose_notes WHERE journal = %s AND job = %s ORDER BY declared DESC LIMIT %s) AS last
    ORDER BY declared, step"""


class StoreError(RuntimeError):
    """The database cannot be used; the message is one line, without a password."""


def connect(address: str, password_file: str = "") -> Connection:
    """A connection, in autocommit; psycopg.Error if the server does not answer."""
    given: dict[str, Any] = {**TIMEOUTS, **conninfo_to_dict(address)}
    if password_file:
        given["password"] = read_password(password_file)
    return psycopg.connect(autocommit=True, **given)


def read_password(file: str) -> str:
    """The first line of the file; StoreError if it cannot be read."""
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"password_file {file}: {getattr(error, 'strerror', None) or error}") from None


def prepare(connection: Connection, journal: str, daemon: str) -> str:
    """Makes the tables where there are none, and enters the journal; the identity of the database."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('caboose_store'))")  # one daemon makes the tables
        if connection.execute("SELECT to_regclass('caboose_store')").fetchone() == (None,):
            for statement in TABLES:
                connection.execute(statement)
            connection.execute("INSERT INTO caboose_store VALUES (%s, %s)", (uuid.uuid4().hex, VERSION))
        identity = _identity(connection)
        connection.execute(JOURNAL, (journal, without_nul(daemon)))
    return identity


def _identity(connection: Connection) -> str:
    row = connection.execute("SELECT id, version FROM caboose_store").fetchone()
    if row is None or row[1] != VERSION:
        found = "no version" if row is None else f"version {row[1]}"
        raise StoreError(f"its tables are of {found}, and this Caboose writes version {VERSION}")
    return str(row[0])


def put_incident(connection: Connection, journal: str, job: str, body: Json) -> None:
    """Writes an incident, as the API shows it, and the causes of its diagnosis."""
    key = {"journal": journal, "job": job, "number": body["number"], "opened": body["opened_time"]}
    columns = {name: body[name] for name in ("attempt", "onset_step", "rule", "state", "summary")}
    connection.execute(
        INCIDENT, _clean({**key, **columns, "severity": body["worst"], "closed": body["closed_time"], "body": body})
    )
    connection.execute(NO_CAUSES, _clean(key))
    for place, cause in enumerate((body["diagnosis"] or {}).get("causes", ())):
        of_cause = {name: cause[name] for name in ("title", "confidence", "first_fix")}
        connection.execute(CAUSE, _clean({**key, **of_cause, "place": place, "cause": cause["id"]}))


def put_decision(connection: Connection, journal: str, job: str, body: Json) -> None:
    """Writes a decision, as the API shows it."""
    columns = {name: body[name] for name in ("number", "kind", "state", "summary")}
    connection.execute(
        DECISION, _clean({"journal": journal, "job": job, **columns, "made": body["time"], "body": body})
    )


def put_note(connection: Connection, journal: str, job: str, body: Json) -> None:
    """Writes a declared event, as the API shows it; one that several ranks declared is one row."""
    columns = {name: body[name] for name in ("attempt", "step", "kind")}
    digest = hashlib.sha256(repr(sorted(body["fields"].items())).encode("utf-8", "replace")).hexdigest()
    values = {"journal": journal, "job": job, **columns, "digest": digest, "declared": body["time"], "body": body}
    connection.execute(NOTE, _clean(values))


class StoreReader:
    """Reads what the daemons have written."""

    def __init__(self, address: str, password_file: str = "") -> None:
        with _explained():
            self._connection = connect(address, password_file)
            self._connection.read_only = True

    def jobs(self) -> list[Json]:
        """Each job of each journal, the last one with news first: job, journal, daemon, latest."""
        with _explained(), self._connection.cursor(row_factory=dict_row) as cursor:
            if cursor.execute("SELECT to_regclass('caboose_store') AS there").fetchone() == {"there": None}:
                return []  # no daemon has written yet
            return cursor.execute(JOBS).fetchall()

    def incidents(self, journal: str, job: str) -> list[Json]:
        """The last ones, open ones first, as the API shows them."""
        return self._bodies(INCIDENTS, journal, job, MAX_PER_JOB)

    def decisions(self, journal: str, job: str) -> list[Json]:
        """Newest first."""
        return self._bodies(DECISIONS, journal, job)

    def notes(self, journal: str, job: str) -> list[Json]:
        """Oldest first."""
        return self._bodies(NOTES, journal, job, MAX_NOTES)

    def close(self) -> None:
        self._connection.close()

    def _bodies(self, query: LiteralString, *values: object) -> list[Json]:
        with _explained():
            return [row[0] for row in self._connection.execute(query, values).fetchall()]


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise StoreError(" ".join(str(error).split()) or type(error).__name__) from None


def _clean(values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a statement: no NUL, and `body` as JSON."""
    cleaned = {name: without_nul(value) for name, value in values.items()}
    return {name: Jsonb(value) if name == "body" else value for name, value in cleaned.items()}


def without_nul(value: Any) -> Any:
    """The value with every NUL in its texts replaced."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, Mapping):
        return {without_nul(name): without_nul(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [without_nul(each) for each in value]
    return value
