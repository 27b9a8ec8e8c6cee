"""monitor_blind: what Caboose itself cannot see, so that its silence is not taken for health.

Design
------
Three conditions. What the agent cannot see from the start (activations of a compiled model, parameters in an unknown
layout) is a property of the job: reported once as an info, with the rules that abstain. An agent that turned itself
off, and reports lost on the way, mean that something unintentionally goes unwatched: a warning. A few lost reports in a
long run do not matter; a share of the recent ones does.

Lost reports are gaps in a rank's sequence numbers, reports that agents dropped (a gap as well, so the larger of the two
counts) and reports that arrived after their step was closed. It never pages: the run itself is not affected.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import and_more
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.view import JobView

MEMORY = 60
"""Ticks, about a second apart, over which reports are counted."""
CALM_TICKS = 60
MAX_NAMED = 64
UNREPORTED = frozenset({"data_wait", "validation"})
"""What the page lists as not visible and nobody expects to be: many runs have no validation, and no watched loader."""


@dataclass(frozen=True)
class MonitorBlindConfig(RuleConfig):
    """Thresholds of monitor_blind."""

    lost_share: float = 0.01
    """Share of the last minute's reports that were lost, above which it is reported."""
    lost_reports: int = 10
    """Lost reports of the last minute that are needed as well."""


class MonitorBlind(Rule[MonitorBlindConfig]):
    """Agents that are off, lost reports, and what is not visible at all."""

    name = "monitor_blind"
    config_class = MonitorBlindConfig
    trigger = "tick"

    def __init__(self, config: MonitorBlindConfig) -> None:
        super().__init__(config)
        self._step: int | None = None
        self._num_lost = 0
        self._lost = 0.0
        self._expected = 0.0
        self._num_calm = 0
        self._onset: int | None = None
        self._last_onset = -1
        self._reported: Mapping[str, str] = {}
        """What was last reported as not visible."""
        self._is_report_open = False

    def observe(self, view: JobView) -> Finding | None:
        """A finding while agents are off or reports are lost, and one about what is not visible at all."""
        ranks = view.ranks.values()
        if not ranks or any(rank.state == "expected" for rank in ranks):
            self._step = None  # after a restart the counts are known once every rank has reported
            return None
        step = max(rank.step for rank in ranks)
        self._count(view, step)
        disabled = tuple(r.rank for r in ranks if r.state == "live" and r.agent_state == "disabled")
        is_losing = self._is_losing()
        if disabled or is_losing:
            self._num_calm = 0
            return self._warn(step, disabled, is_losing=is_losing)
        if self._onset is not None:
            return self._calm(step)
        return self._report_not_visible(view, step)

    def resume(self, finding: Finding) -> None:
        """What is not visible is not reported again; lost reports are counted again."""
        if finding.severity is Severity.INFO:
            self._is_report_open = True
            self._last_onset = finding.onset_step
        else:
            self._onset = self._last_onset = finding.onset_step

    def _count(self, view: JobView, step: int) -> None:
        facts = view.alignment
        num_lost = max(facts.num_missed, facts.num_dropped) + facts.num_late
        if self._step is None:
            self._step, self._num_lost = step, num_lost
        decay = 1.0 - 1.0 / MEMORY
        self._lost = self._lost * decay + max(0, num_lost - self._num_lost)
        self._expected = self._expected * decay + max(0, step - self._step) * view.world
        self._step, self._num_lost = step, num_lost

    def _is_losing(self) -> bool:
        """Whether the lost share is too large; reports lost without any step count as well."""
        return self._lost >= self.config.lost_reports and self._lost > self.config.lost_share * self._expected

    def _warn(self, step: int, disabled: tuple[int, ...], *, is_losing: bool) -> Finding:
        if self._onset is None:
            self._onset = self._last_onset = max(step, self._last_onset + 1)  # an onset of its own, for a new episode
            self._is_report_open = False
        parts = []
        if disabled:
            who = f"rank {disabled[0]}{and_more(len(disabled), 'rank')}"
            parts.append(f"agent of {who} turned itself off after repeated failures (see its log)")
        if is_losing:
            share = min(1.0, self._lost / max(self._expected, 1.0))
            limit = f"limit {100 * self.config.lost_share:.2g} %"
            parts.append(f"about {self._lost:,.0f} reports ({100 * share:.0f} %, {limit}) lost in the last minute")
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.WARNING),
            step=step,
            onset_step=self._onset,
            summary="; ".join(parts),
            ranks=disabled[:MAX_NAMED],
            values={"disabled_agents": float(len(disabled)), "lost_reports": self._lost},
        )

    def _calm(self, step: int) -> Finding | None:
        self._num_calm += 1
        if self._num_calm < CALM_TICKS or self._onset is None:
            return None
        onset, self._onset, self._num_calm = self._onset, None, 0
        return Finding(
            rule=self.name,
            severity=Severity.INFO,
            step=step,
            onset_step=onset,
            summary="all agents are on, and their reports arrive",
            state="resolved",
        )

    def _report_not_visible(self, view: JobView, step: int) -> Finding | None:
        """What is not visible at all: once, and once more if it changed."""
        blind = {what: why for what, why in view.blind.items() if what not in UNREPORTED}
        if blind == self._reported:
            return None
        was_reported, self._reported = bool(self._reported) or self._is_report_open, blind
        if not blind and not (was_reported and self._is_report_open):
            return None
        if not self._is_report_open:
            self._last_onset = max(step, self._last_onset + 1)
        self._is_report_open = bool(blind)
        reasons = "; ".join(f"{what} ({why})" for what, why in blind.items())
        abstaining = sorted(view.look_at_abstaining())
        rules = f"; rules that abstain: {', '.join(abstaining)}" if abstaining else ""
        return Finding(
            rule=self.name,
            severity=Severity.INFO,
            step=step,
            onset_step=self._last_onset,
            summary=f"not visible: {reasons}{rules}" if blind else "everything is visible now",
            state="open" if blind else "resolved",
        )
