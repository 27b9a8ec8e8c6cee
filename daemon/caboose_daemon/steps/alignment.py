"""Collects the ranks' reports of one step, and decides when to stop waiting.

Design
------
A rank's reports arrive in order, so a step is complete once every expected rank has reported it *or a later one*:
a lost report delays nothing. Otherwise it closes after a deadline, max(2 s, 3 x the median step
time), counted from its first report. Steps close in order. A report for a step that is closed is counted as late
and dropped. At most `MAX_OPEN` steps are open; beyond that the oldest closes early.

Waiting costs as much as ranks have reported, not as many as the claimed world has. Closing a step costs as much as
its world: so one call closes at most `MAX_CLOSED_RANKS` / world steps, and the others wait for the next. Reports for
more than twice `MAX_OPEN` open steps are dropped and counted as late.

A deadline passes only while the daemon reads: one that cannot keep up calls no step incomplete whose reports wait in
its own mailbox.
"""

from collections import deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from statistics import median

from caboose_daemon.steps.aligned import AlignedStep, combine
from caboose_daemon.steps.arrivals import Arrivals
from caboose_daemon.steps.reduce_ranks import Place, are_apart, by_place
from caboose_wire import Layer, StepReport

MAX_OPEN = 1024
DECIDING_STEPS = 3
"""Steps whose gradients differ between ranks, after which they count as each rank's own for the rest of the attempt."""
SETTLED_STEPS = 50
"""Steps whose gradients were equal, after which they count as reduced: a rank that differs then has a fault."""
MAX_CLOSED_RANKS = 524_288
"""Ranks times steps that one call closes: 64 steps of 8,192 ranks. At least one step is closed."""


@dataclass
class _OpenStep:
    opened: float
    reports: dict[int, StepReport] = field(default_factory=dict)


class Aligner:
    """The open steps of one attempt of one job."""

    def __init__(self, attempt: int, *, min_deadline: float = 2.0, deadline_steps: float = 3.0) -> None:
        self.attempt = attempt
        self._min_deadline = min_deadline
        self._deadline_steps = deadline_steps
        self._open: dict[int, _OpenStep] = {}
        self._arrivals = Arrivals()
        self._durations: deque[float] = deque(maxlen=31)
        self.last_closed = -1
        self.num_late = 0
        self.num_duplicate = 0
        self.num_incomplete = 0
        self._num_equal = self._num_apart = 0
        self._is_local = False

    @property
    def is_open(self) -> bool:
        """Whether a step waits for ranks."""
        return bool(self._open)

    @property
    def num_open(self) -> int:
        """Steps that wait."""
        return len(self._open)

    def add(self, rank: int, report: StepReport, now: float) -> None:
        self._arrivals.add(rank, report.step)
        if report.step <= self.last_closed:
            self.num_late += 1
            return
        if report.step not in self._open and len(self._open) >= 2 * MAX_OPEN:
            self.num_late += 1
            return
        step = self._open.setdefault(report.step, _OpenStep(opened=now))
        if rank in step.reports:
            self.num_duplicate += 1
            return
        step.reports[rank] = report
        if report.phases is not None and report.phases.total > 0:
            self._durations.append(report.phases.total)

    def close(
        self,
        gone: Set[int],
        world: int,
        layers: Sequence[Layer],
        now: float,
        *,
        main_group: int = 0,
        is_total_whole: bool = False,
        is_final: bool = False,
    ) -> Iterator[AlignedStep]:
        """The steps that are complete or overdue, in order; no step waits for ranks that are gone, or if it is final.

        `now`: the time until which all messages have been read. One whose reports cannot be combined is lost.
        """
        if not self._open:
            return
        num_expected = 0 if is_final else world - len(gone)
        watermark = self._arrivals.watermark(gone, num_expected)
        deadline = self.deadline_seconds
        for number in sorted(self._open)[: max(1, MAX_CLOSED_RANKS // world)]:
            step = self._open[number]
            is_due = number <= watermark or now - step.opened >= deadline or len(self._open) > MAX_OPEN
            if not is_due:
                break
            del self._open[number]
            self.last_closed = number
            if num_expected and len(step.reports.keys() - gone) < num_expected:
                self.num_incomplete += 1
            places = by_place("grad_norm", step.reports, len(layers))
            yield combine(
                step.reports,
                attempt=self.attempt,
                step=number,
                world=world,
                layers=layers,
                main_group=main_group,
                is_total_whole=is_total_whole,
                is_local=self._are_gradients_local(places, layers),
                gradient_places=places,
            )

    def _are_gradients_local(self, places: Sequence[Place], layers: Sequence[Layer]) -> bool:
        """Whether each rank has gradients of its own: the optimizer reduces them itself (ZeRO, Muon), or nobody does.

        Ranks may have equal batches for a while, in the first steps above all. So every step is compared, and one that
        differs has no norm of the whole; `DECIDING_STEPS` of them decide. Once `SETTLED_STEPS` were equal it is the
        other way round: the largest norm shows the fault, unless as many steps in a row differ.
        """
        if self._is_local:
            return True
        is_apart = are_apart(places, layers)
        if is_apart is None:
            return False
        is_settled = self._num_equal >= SETTLED_STEPS
        if is_apart:
            self._num_apart += 1
        else:
            self._num_equal += 1
            self._num_apart = 0 if is_settled else self._num_apart
        self._is_local = self._num_apart >= (SETTLED_STEPS if is_settled else DECIDING_STEPS)
        return self._is_local or (is_apart and not is_settled)

    @property
    def deadline_seconds(self) -> float:
        """How long a step waits for its last rank."""
        typical = median(self._durations) if self._durations else 0.0
        return max(self._min_deadline, self._deadline_steps * typical)
