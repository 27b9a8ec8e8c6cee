"""Joins a job's episodes into incidents: one cause, one incident, on 8 ranks or on 8,000.

Design
------
The pipeline calls `update` with all episodes that a step (or a tick) changed, on the loop's thread. A new reportable
episode joins the open incident that has an episode with which it can share a cause (see `causal_links`). Where several
incidents have one, they are one incident: the worst of them, the oldest of equals, takes over the episodes of the
others, because people already know it by its number. Incidents that name different ranks are different faults: an
episode that names no rank joins the worst of them, the nearest of equals, and the others stay open. Where no open
incident fits, one that closed a moment ago, or was cut off by the end of the attempt before, is reopened. Else a new
one opens, led by the episode nearest to a cause among those of this step. Episodes of severity info open nothing: they
wait, and join as additional evidence.

An incident is over when none of its reportable episodes is open. `update` returns only incidents in which a reader
would see a difference: one more finding of an open episode is none.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from caboose_daemon.incidents.causal_links import HORIZON, ORDER, can_share_cause, ranks_overlap
from caboose_daemon.incidents.diagnosis_record import Diagnosis
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Acknowledgement, Incident, with_derived_fields, with_merge_of_old_journal
from caboose_daemon.rules.parts.finding import Severity
from caboose_daemon.shallow import shallow

MAX_KEPT = 200
MAX_EPISODES = 64
"""Episodes that one incident remembers, so that a rule that fires and ends for weeks does not fill the memory."""
REOPEN_HORIZONS = 3
"""Horizons after its end in which the same fault reopens an incident."""


@dataclass(frozen=True)
class Moment:
    """When the episodes of a call were found, and in which regimes of the run."""

    attempt: int
    step: int
    time: float
    regimes: frozenset[str] = frozenset()
    host_of: Callable[[int], str] = lambda rank: ""


class IncidentLog:
    """The incidents of one job; `gap` is the usual distance of two reported steps (1 but for logs)."""

    def __init__(self, job: str, *, gap: int = 1) -> None:
        self._job = job
        self._horizon = HORIZON * max(1, gap)
        self._next_number = 1
        self._open: dict[int, Incident] = {}
        self._closed: deque[Incident] = deque(maxlen=MAX_KEPT)
        self._incident_of: dict[int, int] = {}
        """The number of the open incident that an episode is in, by the episode's id."""
        self._waiting: dict[int, Episode] = {}
        """Open episodes of severity info that are in no incident."""

    def update(
        self, episodes: Iterable[Episode], moment: Moment, *, reason: str = "", is_cut: bool = False
    ) -> list[Incident]:
        """Takes the episodes that a step changed; returns the incidents that changed visibly.

        `reason` is given where no rule saw the episodes end; `is_cut` is True where they ended with the attempt.
        """
        before = dict(self._open)
        changed = sorted(episodes, key=lambda e: (ORDER.get(e.rule, len(ORDER)), e.first.onset_step))
        for episode in changed:
            if episode.id in self._incident_of:
                self._refresh(episode)
            elif not episode.is_open and self._refresh_closed(episode):
                continue  # a closed incident already has it
            elif episode.severity is not Severity.INFO:
                self._waiting.pop(episode.id, None)
                self._join_or_open(episode, moment)
            else:
                self._join_or_wait(episode)
        touched = self._open.keys() - before.keys()
        touched |= {self._incident_of[e.id] for e in changed if e.id in self._incident_of}
        changed_now = [self._settled(number, moment, reason, is_cut) for number in sorted(touched)]
        merged = [i for i in self._closed if i.number in before and i.number not in self._open and i not in changed_now]
        return [*merged, *(i for i in changed_now if _has_visible_change(before.get(i.number), i))]

    def close_all(self, moment: Moment, reason: str, *, is_cut: bool = False) -> list[Incident]:
        """Closes all open incidents, for a reason other than that a rule saw them end."""
        return [self._close(number, moment, reason, is_cut=is_cut) for number in list(self._open)]

    def acknowledge(self, number: int, acknowledgement: Acknowledgement | None) -> Incident | None:
        """Sets or (None) removes the acknowledgement; None where no such incident is open or unresolved."""
        incident = self.acknowledged(number, acknowledgement)
        if incident is not None:
            self.put_back(incident)
        return incident

    def acknowledged(self, number: int, acknowledgement: Acknowledgement | None) -> Incident | None:
        """An incident with this acknowledgement, or without one (None); the log is not changed.

        None where it is neither open nor one that its run ended with.
        """
        incident = self.find(number)
        if incident is None or not (incident.is_open or incident.is_unresolved):
            return None
        if acknowledgement is not None:
            acknowledgement = replace(acknowledgement, severity=incident.severity_at_end)
        held = replace(incident, acknowledged=acknowledgement, outgrown=None)
        return with_derived_fields(held, lambda rank: "") if incident.is_open else held

    def put_back(self, incident: Incident) -> None:
        """Takes over a changed copy of an incident of this log."""
        if incident.number in self._open:
            self._open[incident.number] = incident
            return
        for place, known in enumerate(self._closed):
            if known.number == incident.number:
                self._closed[place] = incident

    def copy(self) -> "IncidentLog":
        """The same incidents in a log of its own, for a reader on another thread."""
        log = shallow(self)
        log.unshare()
        return log

    def unshare(self) -> None:
        """Gives it containers that no other log has."""
        self._open, self._closed = dict(self._open), self._closed.copy()
        self._incident_of, self._waiting = dict(self._incident_of), dict(self._waiting)

    def end_for_good(self, number: int, reason: str) -> Incident | None:
        """Marks an incident that was cut off with its attempt as recovered; None where it was not cut off."""
        for place, incident in enumerate(self._closed):
            if incident.number == number and incident.is_cut:
                self._closed[place] = replace(incident, is_cut=False, has_recovered=True, reason=reason)
                return self._closed[place]
        return None

    def diagnosed(self, number: int, diagnosis: Diagnosis) -> Incident | None:
        """Sets the diagnosis of an incident; None where there is no such incident."""
        known = self.find(number)
        if known is None:
            return None
        incident = replace(known, diagnosis=diagnosis)
        self.put_back(incident)
        return incident

    def restore(self, incidents: Iterable[Incident], episodes: Iterable[Episode], *, num_opened: int = 0) -> None:
        """Takes over what a journal kept, oldest first; `episodes` are all that it has."""
        held: set[int] = set()
        self._next_number = max(self._next_number, num_opened + 1)
        for incident in incidents:
            self._next_number = max(self._next_number, incident.number + 1)
            held.update(known.id for known in incident.episodes)
            if incident.is_open:
                self._open[incident.number] = incident = replace(incident, episodes=_once(incident.episodes))
                self._incident_of.update((known.id, incident.number) for known in incident.episodes)
            else:
                self._closed.append(with_merge_of_old_journal(incident))
        for episode in episodes:
            if episode.is_open and episode.severity is Severity.INFO and episode.id not in held:
                self._waiting[episode.id] = episode
        for incident in [i for i in self._open.values() if not any(known.is_open for known in i.reportable)]:
            last = incident.episodes[-1]  # no episode is left that could close it
            self._close(incident.number, Moment(last.attempt, last.last.step, last.last_time), last.last.summary)

    def _refresh_closed(self, episode: Episode) -> bool:
        """Puts the episode's end into the closed incident that has it; False where none has."""
        for place, incident in enumerate(self._closed):
            if any(known.id == episode.id for known in incident.episodes):
                self._closed[place] = replace(incident, episodes=_with(incident.episodes, episode))
                return True
        return False

    def _refresh(self, episode: Episode) -> None:
        number = self._incident_of[episode.id]
        incident = self._open[number]
        self._open[number] = replace(incident, episodes=_with(incident.episodes, episode))

    def _join_or_open(self, episode: Episode, moment: Moment) -> None:
        linked = self._open_linked_to(episode)
        if linked:
            # A closed incident that fits as well was the same one: it is reopened, and merged.
            one_fault = _compatible([*linked, *self._closed_linked_to(episode)], episode)
            number = self._merge([i.number if i.is_open else self._reopen(i) for i in one_fault], moment)
        else:
            again = self._closed_with_same_fault(episode)
            number = self._reopen(again) if again is not None else self._open_new(episode, moment)
        self._join(number, episode)
        for waiting in list(self._waiting.values()):
            is_linked = any(can_share_cause(*pair, self._horizon) for pair in ((waiting, episode), (episode, waiting)))
            if is_linked and ranks_overlap(self._open[number].ranks, waiting.worst.ranks):
                del self._waiting[waiting.id]
                self._join(number, waiting)

    def _join_or_wait(self, episode: Episode) -> None:
        linked = self._open_linked_to(episode)
        if episode.is_open and not linked:
            self._waiting[episode.id] = episode
            return
        self._waiting.pop(episode.id, None)
        if linked:
            self._join(_compatible(linked, episode)[0].number, episode)

    def _open_linked_to(self, episode: Episode) -> list[Incident]:
        """The open incidents that the episode can be a part of."""
        return [i for i in self._open.values() if self._is_linked(i, i.episodes, episode)]

    def _is_linked(self, incident: Incident, episodes: Iterable[Episode], new: Episode) -> bool:
        """Whether one of these episodes can share the cause of the new one, and the incident's ranks fit."""
        if not ranks_overlap(incident.ranks, new.worst.ranks):
            return False
        return any(can_share_cause(known, new, self._horizon) for known in episodes)

    def _open_new(self, episode: Episode, moment: Moment) -> int:
        number = self._next_number
        self._next_number += 1
        self._open[number] = Incident(
            job=self._job,
            number=number,
            attempt=moment.attempt,
            rule=episode.rule,
            opened_step=moment.step,
            opened_time=moment.time,
            regimes=tuple(sorted(moment.regimes)),
            severity=Severity.INFO,  # until `_settled`, which sees it rise
        )
        return number

    def _join(self, number: int, episode: Episode) -> None:
        episodes = _with(self._open[number].episodes, episode)
        if len(episodes) > MAX_EPISODES:
            oldest = next((e for e in episodes[1:-1] if not e.is_open), episodes[1])
            self._incident_of.pop(oldest.id, None)
            episodes = tuple(e for e in episodes if e is not oldest)
        self._open[number] = replace(self._open[number], episodes=episodes)
        self._incident_of[episode.id] = number

    def _merge(self, numbers: list[int], moment: Moment) -> int:
        """The worst of several, the oldest of equals, takes over the others' episodes, so that one fault pages once."""
        kept = min(numbers, key=lambda n: (-self._open[n].severity.rank, -self._open[n].worst.rank, n))
        for number in sorted(numbers):
            if number != kept:
                episodes = self._open[number].episodes
                reason = f"merged into {self._job}/{kept}: same cause"
                self._close(number, moment, reason, merged_into=kept)
                for known in episodes:
                    self._join(kept, known)
        return kept

    def _closed_linked_to(self, episode: Episode) -> list[Incident]:
        """The closed incidents that the episode can be a part of."""
        past = (i for i in self._closed if not i.is_merged)
        return [i for i in past if self._is_linked(i, i.reportable, episode)]

    def _closed_with_same_fault(self, episode: Episode) -> Incident | None:
        """The incident that the episode reopens: linked, or of the same rule and either recent or cut off."""
        for incident in reversed(self._closed):
            if incident.is_merged:
                continue
            if self._is_linked(incident, incident.episodes, episode):
                return incident
            last = [e for e in incident.episodes if (e.rule, e.part) == (episode.rule, episode.part)]
            if not last or not ranks_overlap(last[-1].worst.ranks, episode.worst.ranks):
                continue
            if last[-1].attempt == episode.attempt:
                ended = incident.closed_step if incident.closed_step is not None else incident.last_step
                if episode.first.onset_step <= ended + REOPEN_HORIZONS * self._horizon:
                    return incident
            elif incident.is_cut and last[-1].attempt == episode.attempt - 1:
                return incident
        return None

    def _reopen(self, incident: Incident) -> int:
        self._closed.remove(incident)
        self._open[incident.number] = replace(
            incident,
            state="open",
            severity=Severity.INFO,
            acknowledged=None,
            outgrown=None,
            closed_step=None,
            closed_time=None,
            reason="",
            is_cut=False,
            has_recovered=False,
            num_reopened=incident.num_reopened + 1,
        )
        self._incident_of.update((known.id, incident.number) for known in incident.episodes)
        return incident.number

    def _settled(self, number: int, moment: Moment, reason: str, is_cut: bool) -> Incident:
        before = self._open[number].severity
        incident = with_derived_fields(self._open[number], moment.host_of)
        is_open = any(known.is_open for known in incident.reportable)
        # An incident that is reopened by the end of an episode has not got worse.
        if incident.severity.rank > before.rank and (is_open or not incident.num_reopened):
            incident = _with_rise_time(incident, moment.time)
        self._open[number] = incident
        if is_open:
            return incident
        last = max(incident.reportable, key=lambda known: (known.last.step, known.last_time))
        return self._close(number, moment, reason or last.last.summary, is_cut=is_cut)

    def _close(
        self, number: int, moment: Moment, reason: str, *, is_cut: bool = False, merged_into: int | None = None
    ) -> Incident:
        incident = self._open.pop(number)
        closed = replace(
            incident,
            state="resolved",
            severity=incident.worst,
            closed_step=moment.step,
            closed_time=moment.time,
            reason=reason,
            is_cut=is_cut,
            merged_into=merged_into,
        )
        for known in incident.episodes:
            self._incident_of.pop(known.id, None)
        self._closed.append(closed)
        return closed

    @property
    def num_opened(self) -> int:
        """How many were ever opened; also the number of the last one."""
        return self._next_number - 1

    @property
    def open(self) -> list[Incident]:
        """Open incidents, the worst first."""
        return sorted(self._open.values(), key=lambda i: (-i.severity.rank, i.number))

    def find(self, number: int) -> Incident | None:
        """The incident with this number; None where it is no longer kept."""
        return next((incident for incident in self if incident.number == number), None)

    def __iter__(self) -> Iterator[Incident]:
        """Open ones, the newest first, then closed ones, the last closed first."""
        yield from sorted(self._open.values(), key=lambda i: -i.number)
        yield from reversed(self._closed)


def _compatible(incidents: list[Incident], episode: Episode) -> list[Incident]:
    """Of incidents linked to an episode: the worst, the nearest of equals, and all whose ranks fit with it."""

    def place(incident: Incident) -> tuple[bool, int, int]:
        severity = max((known.severity.rank for known in incident.reportable if known.is_open), default=0)
        away = min(abs(known.first.onset_step - episode.first.onset_step) for known in incident.episodes)
        return not incident.is_open, -severity, away

    one, ranks = [], frozenset(episode.worst.ranks)
    for incident in sorted(incidents, key=place):
        if ranks_overlap(ranks, incident.ranks):
            one.append(incident)
            ranks |= incident.ranks
    return one


def _with_rise_time(incident: Incident, now: float) -> Incident:
    if incident.severity is Severity.CRITICAL:
        return replace(incident, critical_time=now)
    return replace(incident, warning_time=now)


def _once(episodes: tuple[Episode, ...]) -> tuple[Episode, ...]:
    return tuple({known.id: known for known in episodes}.values())


def _with(episodes: tuple[Episode, ...], episode: Episode) -> tuple[Episode, ...]:
    """The episodes with this one updated in its place, or appended where it is new."""
    if any(known.id == episode.id for known in episodes):
        return tuple(episode if known.id == episode.id else known for known in episodes)
    return (*episodes, episode)


def _has_visible_change(before: Incident | None, now: Incident) -> bool:
    if before is None:
        return True
    names = ("state", "severity", "worst", "witness", "reason", "num_reopened")
    if any(getattr(before, name) != getattr(now, name) for name in names):
        return True
    return [(e.id, e.is_open, e.severity) for e in before.episodes] != [
        (e.id, e.is_open, e.severity) for e in now.episodes
    ]
