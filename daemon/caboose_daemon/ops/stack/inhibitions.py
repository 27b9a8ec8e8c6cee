"""Which alert is inhibited while another one fires: one cause, one page, in every Alertmanager configured here.

Design
------
Read by `caboose stack`, and written from here into dashboards/alertmanager and deploy/alertmanager (`make docs`). They
match labels, not alert names, as any rule may lead an incident: pages on incidents have a `rule`, pages on rollback
have none. An Alertmanager may be shared with other teams that use the same team and severity names, and it treats a
label that both sides lack as equal: so both sides of every rule match Caboose's alerts, and only labels that both have
are compared. No two alerts may inhibit each other, or neither would notify: of the pages on a job, those on incidents
(except rank_silent) win over those on rollback, and these over rank_silent.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Inhibition:
    """While `source` fires, `target` does not notify."""

    why: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    equal: tuple[str, ...] = ()

    def config(self) -> dict[str, Any]:
        """The rule in Alertmanager's configuration."""
        rule: dict[str, Any] = {"source_matchers": list(self.source), "target_matchers": list(self.target)}
        return {**rule, "equal": list(self.equal)} if self.equal else rule


OURS = 'alertname=~"Caboose.+"'
PAGE = (OURS, 'team="training"', 'severity="critical"', 'training_job!=""')
TICKET = (OURS, 'team="training"', 'severity="warning"', 'training_job!=""')

INHIBITIONS = (
    Inhibition(
        "One cause, one page: while an incident pages, its ticket does not notify. Without a `rule`, a page on"
        " rollback inhibits the tickets on rollback in the same way.",
        PAGE,
        TICKET,
        ("training_job", "rule"),
    ),
    Inhibition(
        "The run is over: what it ended with keeps firing until it is acknowledged, and is not sent again.",
        ('alertname="CabooseEndedUnresolved"',),
        (OURS, 'team="training"', 'severity=~"critical|warning"', 'rule!=""'),
        ("training_job", "rule"),
    ),
    Inhibition(
        "An incident of the run pages already: a rollback that failed or did not help is part of it.",
        (*PAGE, 'rule!=""', 'rule!="rank_silent"'),
        (*PAGE, 'rule=""'),
        ("training_job",),
    ),
    Inhibition(
        "A run that was stopped, or could not roll back, ends with errors on its ranks: they are gone as expected.",
        (*PAGE, 'rule=""'),
        (*PAGE, 'rule="rank_silent"'),
        ("training_job",),
    ),
    Inhibition(
        "A run whose command failed has stopped: that no rollback is left is no second page.",
        ('alertname="CabooseRollbackFailed"',),
        ('alertname="CabooseRollbackExhausted"',),
        ("training_job",),
    ),
    Inhibition(
        "A job that no daemon watches is also one with parts that are not observed.",
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
        "A daemon that falls behind also reports what is slow.",
        ('alertname="CabooseLoopLagging"',),
        ('alertname=~"CabooseLoopSlow|CabooseRulesSlow"',),
        ("instance",),
    ),
    Inhibition(
        "A daemon that falls behind is also late with reports; that alert is per job, on any daemon.",
        ('alertname="CabooseLoopLagging"',),
        ('alertname="CabooseReportsLate"',),
        ("job",),
    ),
    Inhibition(
        "No daemon at all: its last values are old.",
        ('alertname="CabooseAbsent"',),
        (OURS, 'team="platform"', 'severity="warning"'),
    ),
)
