"""Keeps a replayed log's incidents, with what a diagnosis of them needs to see."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.weighing import diagnose_due
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.incidents.incident_log import IncidentLog, Moment
from caboose_daemon.jobs.engine import Engine
from caboose_daemon.jobs.job import RECENT_EVENTS, RECENT_STEPS
from caboose_daemon.steps.summary import StepSummary
from caboose_daemon.steps.view import JobView
from caboose_wire import Event
from caboose_wire.fields import Scalar


class Book:
    """The incidents of one log; `gap` is the usual distance of two of its steps."""

    def __init__(self, name: str, *, gap: int, config: Mapping[str, Scalar] | None = None) -> None:
        self._log = IncidentLog(name, gap=gap)
        self._config = config or {}
        self._recent: deque[StepSummary] = deque(maxlen=RECENT_STEPS)
        self._events: deque[Event] = deque(maxlen=RECENT_EVENTS)
        self._last: dict[int, Incident] = {}
        self._view: JobView | None = None
        self._engine: Engine | None = None

    def begin(self, ended: Sequence[Episode], attempt: int, engine: Engine) -> None:
        """The run was started again: what was open is cut."""
        if ended and self._view is not None:
            self._tell(self._log.take(ended, self._moment(), reason=f"attempt {attempt} began", is_cut=True))
        self._recent.clear()
        self._engine = engine

    def add(self, summary: StepSummary, view: JobView) -> None:
        """The next row, before it is judged."""
        self._recent.append(summary)
        self._events.extend(view.events)
        self._view = view

    def take(self, episodes: Iterable[Episode]) -> None:
        """The episodes that this row changed."""
        self._tell(self._log.take(episodes, self._moment()))

    def finish(self) -> list[Incident]:
        """All incidents in the order in which they opened; those still open, in the light of the whole log."""
        self._tell(self._log.open)
        return [self._last[number] for number in sorted(self._last)]

    def _tell(self, news: Iterable[Incident]) -> None:
        step = self._recent[-1].step if self._recent else 0
        for incident in diagnose_due(self._log, news, step, self._case):
            self._last[incident.number] = incident

    def _moment(self) -> Moment:
        view = self._view
        assert view is not None, "a row was added before anything was found in it"
        step = self._recent[-1].step if self._recent else 0
        return Moment(view.attempt, step, view.now, view.regime.active)

    def _case(self, incident: Incident) -> Case:
        view, engine = self._view, self._engine
        assert view is not None, "a row was added before anything was found in it"
        assert engine is not None, "an attempt begins before its rows"
        return Case(
            incident=incident,
            recent=self._recent,
            is_live=False,
            config=self._config,
            events=self._events,
            visible=view.visible,
            abstaining=engine.abstaining(view.visible),
            is_on=engine.is_on,
        )
