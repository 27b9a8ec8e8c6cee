"""The rows of the journal by type: one reading for what is written and for what is restored.

Design
------
Every table has a `Row`: the types of its columns, and `read`, which makes of a row what the daemon keeps in memory. The
journal converts a row with it before the row is written, the restore converts it when the row is read. So what is
written can be read again, and a row that cannot be is known as such by the same code: RowError, with the reason.

A column with the type of a wire field has its bounds. True and False are no numbers.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from caboose_daemon.diagnosis.sample_history import SampleFacts
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.totals import JobTotals
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.ledger import LedgerEntry
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.steps.columns import PART_COLUMNS, STEP_COLUMNS, PartNumbers, StepSummary
from caboose_daemon.steps.named import NamedNumber, Source
from caboose_daemon.steps.samples.sample import unpack
from caboose_daemon.steps.view import RankState
from caboose_daemon.store.step_table import NAMES, PART_NAMES, part_with_nan, with_nan
from caboose_wire import Event, Hello, StepReport
from caboose_wire.fields import MAX_RANKS, Count, JobName, Name, Nonce, Rank, Settings, Text, Time

Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What SQLite can store."""
Flag = Annotated[int, msgspec.Meta(ge=0, le=1)]
T = TypeVar("T")


class RowError(ValueError):
    """A row that cannot be read, or could not be once it was written; the message is the reason."""


class Row(msgspec.Struct, frozen=True):
    """The columns of a table, besides its job."""

    def read(self) -> Any:
        """What the daemon keeps in memory."""
        return self

    def check(self) -> None:
        """Raises if `read` would: called before the row is written."""
        self.read()


class JobRow(Row, frozen=True):
    """A job."""

    name: JobName
    created: float


class TotalsRow(Row, frozen=True):
    """A job's counts."""

    body: bytes

    def read(self) -> JobTotals:
        return _decoded(self.body, JobTotals)

    def check(self) -> None:
        """Nothing: it is made from the daemon's own counts, for every job in every turn."""


class AttemptRow(Row, frozen=True):
    """An attempt."""

    number: Count
    began: float
    world: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    launch: Name
    agent_attempt: Count
    reason: Literal["", "rollback"]
    start_step: Count
    proof: Name | None = None
    is_over: Flag = 0


class MemberRow(Row, frozen=True):
    """A rank of an attempt."""

    attempt: Count
    rank: Rank
    incarnation: Nonce
    host: Name
    pid: Count
    state: RankState
    error: Text
    step: Count
    last_seen: float


class DescriptionRow(Row, frozen=True):
    """The description of a run."""

    attempt: Count
    body: bytes

    def read(self) -> Hello:
        return _decoded(self.body, Hello)


class LatestSampleRow(Row, frozen=True):
    """The last sample, as the API shows it."""

    body: bytes

    def read(self) -> dict[str, Any]:
        return _decoded(self.body, dict[str, Any])

    def check(self) -> None:
        """Nothing: what was encoded from a table can be decoded as one, and it may be large."""


class SampleRow(Row, frozen=True):
    """A sample."""

    attempt: Count
    step: Count
    time: float
    seen: Whole
    is_onset: Flag
    body: bytes

    def read(self) -> Mapping[str, Any]:
        try:
            return unpack(self.body)
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise RowError(f"body: {error}") from None


class SampleFactsRow(Row, frozen=True):
    """What a sampled step showed, for diagnoses."""

    attempt: Count
    step: Count
    body: bytes

    def read(self) -> SampleFacts:
        facts = _decoded(self.body, SampleFacts)
        _must_be_equal("attempt and step", (self.attempt, self.step), (facts.attempt, facts.step))
        return facts


class LastReportsRow(Row, frozen=True):
    """The ranks' reports of the last sampled step, with the attempt they belong to."""

    attempt: Count
    body: bytes

    def read(self) -> tuple[int, dict[int, StepReport]]:
        return self.attempt, _decoded(self.body, dict[Rank, StepReport])

    def check(self) -> None:
        """Nothing: the reports were decoded when they arrived."""


_StepColumns = msgspec.defstruct(
    "_StepColumns",
    [
        (c.name, (Whole if c.kind is int else float) if c.is_required else (Whole if c.kind is int else float) | None)
        for c in STEP_COLUMNS
    ]
    + [("bad", Whole)],
    bases=(Row,),
    frozen=True,
)


class StepRow(_StepColumns, frozen=True):  # type: ignore[misc, call-arg, valid-type]  # made from a table
    """A step, reduced over its ranks."""

    def read(self) -> StepSummary:
        return with_nan({name: getattr(self, name) for name in NAMES}, self.bad)

    def check(self) -> None:
        """Nothing: the types of the columns are all there is to check."""


_PartColumns = msgspec.defstruct(
    "_PartColumns",
    [
        ("attempt", Count),
        ("step", Count),
        ("part", Name),
        *((c.name, float | None) for c in PART_COLUMNS),
        ("bad", Whole),
    ],
    bases=(Row,),
    frozen=True,
)


class PartStepRow(_PartColumns, frozen=True):  # type: ignore[misc, call-arg, valid-type]  # made from a table
    """A step of one part: its attempt, step and numbers."""

    def read(self) -> tuple[int, int, PartNumbers]:
        values = {name: getattr(self, name) for name in PART_NAMES}
        return self.attempt, self.step, part_with_nan(self.part, values, self.bad)

    def check(self) -> None:
        """Nothing: the types of the columns are all there is to check."""


class NamedStepRow(Row, frozen=True):
    """A named number of a step or a validation."""

    attempt: Count
    step: Count
    source: Source
    name: Name
    value: float | None

    def read(self) -> tuple[int, int, NamedNumber]:
        return (
            self.attempt,
            self.step,
            NamedNumber(self.source, self.name, math.nan if self.value is None else self.value),
        )

    def check(self) -> None:
        """Nothing: the types of the columns are all there is to check."""


class EpisodeRow(Row, frozen=True):
    """An episode."""

    id: Count
    attempt: Count
    severity: Severity
    num_findings: Count
    detected_time: float
    last_time: float
    is_open: Flag
    first: bytes
    last: bytes
    worst: bytes | None
    told_step: Whole | None

    def read(self) -> Episode:
        first, last = _decoded(self.first, Finding), _decoded(self.last, Finding)
        if self.worst is not None:
            worst = _decoded(self.worst, Finding)
        else:
            worst = first if first.severity == self.severity else last
        return Episode(
            id=self.id,
            attempt=self.attempt,
            first=first,
            last=last,
            severity=self.severity,
            num_findings=self.num_findings,
            detected_time=self.detected_time,
            last_time=self.last_time,
            is_open=bool(self.is_open),
            worst=worst,
            reported_step=first.step if self.told_step is None else self.told_step,
        )


class IncidentRow(Row, frozen=True):
    """An incident."""

    number: Count
    rule: str
    worst: Severity
    opened_time: float
    closed_time: float | None
    members: bytes
    body: bytes

    def read(self) -> tuple[list[int], Incident]:
        """The ids of its episodes, and the incident without them."""
        incident = _decoded(self.body, Incident)
        _must_be_equal("number", self.number, incident.number)
        return _decoded(self.members, list[int]), incident


class DecisionRow(Row, frozen=True):
    """A decision."""

    number: Count
    time: float
    state: str
    body: bytes

    def read(self) -> Decision:
        decision = _decoded(self.body, Decision)
        _must_be_equal("number", self.number, decision.number)
        return decision


class LedgerRow(Row, frozen=True):
    """A snapshot or a checkpoint."""

    kind: str
    name: str
    time: float
    body: bytes

    def read(self) -> LedgerEntry:
        entry = _decoded(self.body, LedgerEntry)
        _must_be_equal("kind and name", (self.kind, self.name), (entry.kind, entry.name))
        return entry


class EventRow(Row, frozen=True):
    """A declared event."""

    attempt: Count
    step: Count
    time: Time
    kind: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    fields: bytes

    def read(self) -> Event:
        fields = _decoded(self.fields, Settings)
        return Event(attempt=self.attempt, step=self.step, time=self.time, kind=self.kind, fields=fields)


ROWS: dict[str, type[Row]] = {
    "jobs": JobRow,
    "totals": TotalsRow,
    "attempts": AttemptRow,
    "members": MemberRow,
    "descriptions": DescriptionRow,
    "latest_samples": LatestSampleRow,
    "samples": SampleRow,
    "sample_facts": SampleFactsRow,
    "last_reports": LastReportsRow,
    "steps": StepRow,
    "part_steps": PartStepRow,
    "named_steps": NamedStepRow,
    "episodes": EpisodeRow,
    "incidents": IncidentRow,
    "decisions": DecisionRow,
    "ledger": LedgerRow,
    "events": EventRow,
}
KEYS: dict[str, tuple[str, ...]] = {
    "jobs": ("id",),
    "totals": ("job",),
    "attempts": ("job", "number"),
    "members": ("job", "attempt", "rank"),
    "descriptions": ("job", "attempt"),
    "latest_samples": ("job",),
    "samples": ("job", "number"),
    "sample_facts": ("job", "attempt", "step"),
    "last_reports": ("job",),
    "steps": ("job", "attempt", "step"),
    "part_steps": ("job", "attempt", "step", "part"),
    "named_steps": ("job", "attempt", "step", "source", "name"),
    "episodes": ("job", "id"),
    "incidents": ("job", "number"),
    "decisions": ("job", "number"),
    "ledger": ("job", "kind", "name"),
    "events": ("id",),
}
"""The primary key of each table."""


def check_row(table: str, values: Mapping[str, Any]) -> None:
    """RowError if these values, once they are in the table, could not be read again."""
    _typed(table, values).check()


def read_row(table: str, values: Mapping[str, Any]) -> Any:
    """What the daemon keeps in memory of a row."""
    return _typed(table, values).read()


def _typed(table: str, values: Mapping[str, Any]) -> Row:
    try:
        return msgspec.convert(values, ROWS[table])
    except msgspec.ValidationError as error:
        raise RowError(str(error)) from None


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise RowError(f"body: {error}") from None


def _must_be_equal(what: str, column: object, body: object) -> None:
    if column != body:
        raise RowError(f"{what} is {column!r} in its column and {body!r} in its body")
