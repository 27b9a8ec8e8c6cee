"""Alertmanager inhibitions: which alert silences which other one, so that one cause sends one page.

Design
------
Read by `caboose stack`, and written from here into dashboards/alertmanager and deploy/alertmanager (`make docs`). They
match labels, not alert names, since any rule may lead an incident: pages on incidents have a `rule`, pages on rollback
have none. An Alertmanager is shared with other teams, whose labels may have the same values, and treats a label that
both sides lack as equal: so both sides of every inhibition match our alert names and compare a label that both have. No
two alerts may silence each other, or no page would be sent: of the pages on a job, those on incidents (except
rank_silent) come before those on rollback, and these before rank_silent.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Inhibition:
    """While `source` fires, `target` sends no notification."""

    why: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    equal: tuple[str, ...] = ()

    def config(self) -> dict[str, Any]:
        """As in Alertmanager's configuration."""
        rule: dict[str, Any] = {"source_matchers": list(self.source), "target_matchers": list(self.target)}
        return {**rule, "equal": list(self.equal)} if self.equal else rule


OURS = 'alertname=~"Caboose.+"'
PAGE = (OURS, 'team="training"', 'severity="critical"', 'training_job!=""')
TICKET = (OURS, 'team="training"', 'severity="warning"', 'training_job!=""')

INHIBITIONS = (
    Inhibition(
        "One cause, one page: a page on an incident silences the ticket on the same incident. A page on rollback (no"
        " `rule`) silences the tickets on rollback.",
        PAGE,
        TICKET,
        ("training_job", "rule"),
    ),
    Inhibition(
        "The run already has a page on an incident: an exhausted or failed rollback is part of it.",
        (*PAGE, 'rule!=""', 'rule!="rank_silent"'),
        (*PAGE, 'rule=""'),
        ("training_job",),
    ),
    Inhibition(
        "A run that was stopped, or whose rollback failed, ends with errors on its ranks: their silence is expected.",
        (*PAGE, 'rule=""'),
        (*PAGE, 'rule="rank_silent"'),
        ("training_job",),
    ),
    Inhibition(
        "A failed rollback has stopped the run: an exhausted rollback is no second page.",
        ('alertname="CabooseRollbackFailed"',),
        ('alertname="CabooseRollbackExhausted"',),
        ("training_job",),
    ),
    Inhibition(
        "A job without reports also has missing statistics, lost and late reports.",
        ('alertname="CabooseJobUnwatched"',),
        ('alertname=~"CabooseMonitorBlind|CabooseReportsLost|CabooseReportsLate|CabooseStepsIncomplete"',),
        ("training_job",),
    ),
    Inhibition(
        "Rows are lost because the journal cannot be written.",
        ('alertname="CabooseJournalLosingRows"',),
        ('alertname="CabooseJournalUnwritable"',),
        ("instance",),
    ),
    Inhibition(
        "A lagging daemon has a slow loop or slow rules.",
        ('alertname="CabooseLoopLagging"',),
        ('alertname=~"CabooseLoopSlow|CabooseRulesSlow"',),
        ("instance",),
    ),
    Inhibition(
        "A lagging daemon also makes reports late; that alert is per job, not per daemon.",
        ('alertname="CabooseLoopLagging"',),
        ('alertname="CabooseReportsLate"',),
        ("job",),
    ),
    Inhibition(
        "The daemon is absent: its last self-monitoring values are stale.",
        ('alertname="CabooseAbsent"',),
        (OURS, 'team="platform"', 'severity="warning"'),
    ),
)
