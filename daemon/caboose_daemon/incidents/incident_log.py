"""Joins a job's episodes into incidents: one cause, one incident, on 8 ranks or on 8,000.

Design
------
Called by the pipeline with all episodes that a step (or a tick) changed, on the loop's thread. A new episode worth a
ticket joins the open incident that has its kin (see `kinship`); where several have, they turn out to be one, and the
worst of them, the oldest of equals, takes the others in: somebody has been called for it by its name already. But
incidents that name different ranks are different faults, whatever comes of both: a loss that is all ranks' joins the
worst of them, the nearest of equals, and the others go on. Where none has, an incident that was over a moment ago, or
was cut short by the end of the attempt before, is opened again; else a new one opens, led by the episode nearest to a
cause among those of this step. Episodes for the record only open nothing: they wait, and join as signs on the side.

An incident is over when nothing in it that was worth a ticket is open. What changed is returned only where a reader
would see a difference: a finding that merely goes on is no news.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from caboose_daemon.incidents.causal_links import HORIZON, ORDER, agree, are_kin
from caboose_daemon.incidents.diagnosis_record import Diagnosis
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Acknowledgement, Incident, settle, with_merge_of_old_journal
from caboose_daemon.rules.parts.finding import Severity

MAX_KEPT = 200
MAX_MEMBERS = 64
"""Episodes one incident remembers; a rule that flutters for weeks must not fill the memory."""
REOPEN_HORIZONS = 3
"""Horizons after its end in which the same fault opens an incident again."""


@dataclass(frozen=True)
class Moment:
    """When and in what stretch of the run the episodes of a call were found."""

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
        self._holder: dict[int, int] = {}
        """Which open incident an episode is in."""
        self._waiting: dict[int, Episode] = {}
        """Open episodes for the record only, that are in no incident."""

    def take(
        self, episodes: Iterable[Episode], moment: Moment, *, reason: str = "", is_cut: bool = False
    ) -> list[Incident]:
        """Takes the episodes a step changed; returns the incidents that look different now.

        `reason` is given where they ended for another reason than that the rule saw it end; `is_cut`, with the attempt.
        """
        before = dict(self._open)
        changed = sorted(episodes, key=lambda e: (ORDER.get(e.rule, len(ORDER)), e.first.onset_step))
        for episode in changed:
            if episode.id in self._holder:
                self._update(episode)
            elif not episode.is_open and self._is_past(episode):
                continue  # the end of what an incident that is over has in it already is no new sign
            elif episode.severity is not Severity.INFO:
                self._waiting.pop(episode.id, None)
                self._place(episode, moment)
            else:
                self._aside(episode)
        touched = {self._holder[e.id] for e in changed if e.id in self._holder} | (self._open.keys() - before.keys())
        news = [self._settled(number, moment, reason, is_cut) for number in sorted(touched)]
        merged = [i for i in self._closed if i.number in before and i.number not in self._open and i not in news]
        return [*merged, *(i for i in news if _looks_different(before.get(i.number), i))]

    def close_all(self, moment: Moment, reason: str, *, is_cut: bool = False) -> list[Incident]:
        """Ends what is open, for a reason that lies outside of it."""
        return [self._close(number, moment, reason, is_cut=is_cut) for number in list(self._open)]

    def acknowledge(self, number: int, acknowledgement: Acknowledgement | None) -> Incident | None:
        """Notes that somebody has it in hand, or (None) no longer; None where no such incident is open."""
        if number not in self._open:
            return None
        incident = self._open[number]
        if acknowledgement is not None:
            acknowledgement = replace(acknowledgement, severity=incident.severity)
        held = replace(incident, acknowledged=acknowledgement, outgrown=None)
        self._open[number] = settle(held, lambda rank: "")
        return self._open[number]

    def overcome(self, number: int, reason: str) -> Incident | None:
        """What ended with its attempt turned out to be over for good; None where it is not of that kind."""
        for place, incident in enumerate(self._closed):
            if incident.number == number and incident.is_cut:
                self._closed[place] = replace(incident, is_cut=False, reason=reason)
                return self._closed[place]
        return None

    def diagnosed(self, number: int, diagnosis: Diagnosis) -> Incident | None:
        """Notes the diagnosis of an incident; None where it is not known."""
        if number in self._open:
            self._open[number] = replace(self._open[number], diagnosis=diagnosis)
            return self._open[number]
        for place, incident in enumerate(self._closed):
            if incident.number == number:
                self._closed[place] = replace(incident, diagnosis=diagnosis)
                return self._closed[place]
        return None

    def restore(self, incidents: Iterable[Incident], episodes: Iterable[Episode], *, num_opened: int = 0) -> None:
        """Puts back what a journal kept, oldest first; `episodes` are all it has."""
        held: set[int] = set()
        self._next_number = max(self._next_number, num_opened + 1)
        for incident in incidents:
            self._next_number = max(self._next_number, incident.number + 1)
            held.update(member.id for member in incident.members)
            if incident.is_open:
                self._open[incident.number] = incident = replace(incident, members=_once(incident.members))
                self._holder.update((member.id, incident.number) for member in incident.members)
            else:
                self._closed.append(with_merge_of_old_journal(incident))
        for episode in episodes:
            if episode.is_open and episode.severity is Severity.INFO and episode.id not in held:
                self._waiting[episode.id] = episode
        for incident in [i for i in self._open.values() if not any(member.is_open for member in i.told)]:
            last = incident.members[-1]  # nothing could ever close it any more
            self._close(incident.number, Moment(last.attempt, last.last.step, last.last_time), last.last.summary)

    def _is_past(self, episode: Episode) -> bool:
        """Whether an incident that is over has it; that one learns how it ended."""
        for place, incident in enumerate(self._closed):
            if any(member.id == episode.id for member in incident.members):
                self._closed[place] = replace(incident, members=_with(incident.members, episode))
                return True
        return False

    def _update(self, episode: Episode) -> None:
        number = self._holder[episode.id]
        incident = self._open[number]
        self._open[number] = replace(incident, members=_with(incident.members, episode))

    def _place(self, episode: Episode, moment: Moment) -> None:
        kin = self._kin(episode)
        if kin:
            kin = _one_fault([*kin, *self._over_but_kin(episode)], episode)
            number = self._merge([i.number if i.is_open else self._reopen(i) for i in kin], moment)
        else:
            again = self._to_reopen(episode)
            number = self._reopen(again) if again is not None else self._begin(episode, moment)
        self._join(number, episode)
        for aside in list(self._waiting.values()):
            is_kin = are_kin(aside, episode, self._horizon) or are_kin(episode, aside, self._horizon)
            if is_kin and agree(self._open[number].ranks, aside.worst.ranks):
                del self._waiting[aside.id]
                self._join(number, aside)

    def _aside(self, episode: Episode) -> None:
        kin = self._kin(episode)
        if episode.is_open and not kin:
            self._waiting[episode.id] = episode
            return
        self._waiting.pop(episode.id, None)
        if kin:
            self._join(_one_fault(kin, episode)[0].number, episode)

    def _kin(self, episode: Episode) -> list[Incident]:
        """The open incidents that it can be a part of."""
        return [i for i in self._open.values() if self._is_kin(i, i.members, episode)]

    def _is_kin(self, incident: Incident, members: Iterable[Episode], episode: Episode) -> bool:
        """Whether one of these members has its cause, and the incident's ranks can be its own."""
        if not agree(incident.ranks, episode.worst.ranks):
            return False
        return any(are_kin(member, episode, self._horizon) for member in members)

    def _begin(self, episode: Episode, moment: Moment) -> int:
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
            severity=Severity.INFO,  # until it is settled: whatever it is then has risen
        )
        return number

    def _join(self, number: int, episode: Episode) -> None:
        members = _with(self._open[number].members, episode)
        if len(members) > MAX_MEMBERS:
            oldest = next((m for m in members[1:-1] if not m.is_open), members[1])
            self._holder.pop(oldest.id, None)
            members = tuple(m for m in members if m is not oldest)
        self._open[number] = replace(self._open[number], members=members)
        self._holder[episode.id] = number

    def _merge(self, numbers: list[int], moment: Moment) -> int:
        """The worst of several, the oldest of equals, takes the others in: what has paged pages no second time."""
        kept = min(numbers, key=lambda n: (-self._open[n].severity.rank, -self._open[n].worst.rank, n))
        for number in sorted(numbers):
            if number != kept:
                members = self._open[number].members
                reason = f"merged into {self._job}/{kept}: same cause"
                self._close(number, moment, reason, merged_into=kept)
                for member in members:
                    self._join(kept, member)
        return kept

    def _over_but_kin(self, episode: Episode) -> list[Incident]:
        """What is over and has kin of it: where an incident that is open has too, all of them were one."""
        past = (i for i in self._closed if not i.is_merged)
        return [i for i in past if self._is_kin(i, i.told, episode)]

    def _to_reopen(self, episode: Episode) -> Incident | None:
        for incident in reversed(self._closed):
            if incident.is_merged:
                continue
            if self._is_kin(incident, incident.members, episode):
                return incident
            last = [member for member in incident.members if member.rule == episode.rule]
            if not last or not agree(last[-1].worst.ranks, episode.worst.ranks):
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
            num_reopened=incident.num_reopened + 1,
        )
        self._holder.update((member.id, incident.number) for member in incident.members)
        return incident.number

    def _settled(self, number: int, moment: Moment, reason: str, is_cut: bool) -> Incident:
        before = self._open[number].severity
        incident = settle(self._open[number], moment.host_of)
        is_open = any(member.is_open for member in incident.told)
        # What is opened again by its own end has not risen: nothing is the matter.
        if incident.severity.rank > before.rank and (is_open or not incident.num_reopened):
            incident = _risen(incident, moment.time)
        self._open[number] = incident
        if is_open:
            return incident
        last = max(incident.told, key=lambda member: (member.last.step, member.last_time))
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
        for member in incident.members:
            self._holder.pop(member.id, None)
        self._closed.append(closed)
        return closed

    @property
    def num_opened(self) -> int:
        """How many there have been, and the number of the last one."""
        return self._next_number - 1

    @property
    def open(self) -> list[Incident]:
        """What is going on now, the worst first."""
        return sorted(self._open.values(), key=lambda i: (-i.severity.rank, i.number))

    def find(self, number: int) -> Incident | None:
        """The incident with this number, if it is still remembered."""
        return next((incident for incident in self if incident.number == number), None)

    def __iter__(self) -> Iterator[Incident]:
        """Open ones, the newest first, then closed ones, the last closed first."""
        yield from sorted(self._open.values(), key=lambda i: -i.number)
        yield from reversed(self._closed)


def _one_fault(incidents: list[Incident], episode: Episode) -> list[Incident]:
    """Of those that have kin of an episode, the worst, the nearest of equals, and all that can be one with it."""

    def place(incident: Incident) -> tuple[bool, int, int]:
        severity = max((member.severity.rank for member in incident.told if member.is_open), default=0)
        away = min(abs(member.first.onset_step - episode.first.onset_step) for member in incident.members)
        return not incident.is_open, -severity, away

    one, ranks = [], frozenset(episode.worst.ranks)
    for incident in sorted(incidents, key=place):
        if agree(ranks, incident.ranks):
            one.append(incident)
            ranks |= incident.ranks
    return one


def _risen(incident: Incident, now: float) -> Incident:
    if incident.severity is Severity.CRITICAL:
        return replace(incident, critical_time=now)
    return replace(incident, warning_time=now)


def _once(members: tuple[Episode, ...]) -> tuple[Episode, ...]:
    return tuple({member.id: member for member in members}.values())


def _with(members: tuple[Episode, ...], episode: Episode) -> tuple[Episode, ...]:
    """The members with this episode as it now stands: in its place, or behind the others where it is new."""
    if any(member.id == episode.id for member in members):
        return tuple(episode if member.id == episode.id else member for member in members)
    return (*members, episode)


def _looks_different(before: Incident | None, now: Incident) -> bool:
    if before is None:
        return True
    names = ("state", "severity", "worst", "witness", "reason", "num_reopened")
    if any(getattr(before, name) != getattr(now, name) for name in names):
        return True
    return [(m.id, m.is_open, m.severity) for m in before.members] != [
        (m.id, m.is_open, m.severity) for m in now.members
    ]
