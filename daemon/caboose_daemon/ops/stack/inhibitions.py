"""Which alert keeps silent while which other one fires: one cause, one page, in every Alertmanager that is set up here.

Design
------
Read by `caboose stack`, and written from here into dashboards/alertmanager and deploy/alertmanager (`make docs`). They
go by labels and not by the names of alerts, as any rule may lead an incident: pages on incidents have a `rule`, pages
on rollback have none. An Alertmanager is shared with others, whose teams and severities may be called alike, and takes
a label that both sides lack for an equal one: so both sides of every rule name alerts of ours, and what is compared is
a label that they have. No two alerts may silence each other, or nobody would be told: of the pages on a job, those on
incidents (but rank_silent) go before those on rollback, and these before rank_silent.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Inhibition:
    """While `source` fires, `target` is not told."""

    why: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    equal: tuple[str, ...] = ()

    def config(self) -> dict[str, Any]:
        """As Alertmanager's configuration has it."""
        rule: dict[str, Any] = {"source_matchers": list(self.source), "target_matchers": list(self.target)}
        return {**rule, "equal": list(self.equal)} if self.equal else rule


OURS = 'alertname=~"Caboose.+"'
PAGE = (OURS, 'team="training"', 'severity="critical"', 'training_job!=""')
TICKET = (OURS, 'team="training"', 'severity="warning"', 'training_job!=""')

INHIBITIONS = (
    Inhibition(
        "One cause, one page: while an incident pages, its ticket says nothing more. Without a `rule`, a page on"
        " rollback silences the tickets on rollback by the same.",
        PAGE,
        TICKET,
        ("training_job", "rule"),
    ),
    Inhibition(
        "Somebody is called to the run already: that going back does not help, or failed, is a part of it.",
        (*PAGE, 'rule!=""', 'rule!="rank_silent"'),
        (*PAGE, 'rule=""'),
        ("training_job",),
    ),
    Inhibition(
        "A run that was stopped, or could not go back, ends with errors on its ranks: that they are gone is no news.",
        (*PAGE, 'rule=""'),
        (*PAGE, 'rule="rank_silent"'),
        ("training_job",),
    ),
    Inhibition(
        "A run whose command failed has stopped with it: that nothing is left to try either is no second page.",
        ('alertname="CabooseRollbackFailed"',),
        ('alertname="CabooseRollbackExhausted"',),
        ("training_job",),
    ),
    Inhibition(
        "A job that nobody watches is also one of which parts are not seen.",
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
        "A daemon that falls behind is slow somewhere.",
        ('alertname="CabooseLoopLagging"',),
        ('alertname=~"CabooseLoopSlow|CabooseRulesSlow"',),
        ("instance",),
    ),
    Inhibition(
        "It is late with everything, too; that is told of a job, wherever its daemon runs.",
        ('alertname="CabooseLoopLagging"',),
        ('alertname="CabooseReportsLate"',),
        ("job",),
    ),
    Inhibition(
        "No daemon at all: what it said of itself last is old.",
        ('alertname="CabooseAbsent"',),
        (OURS, 'team="platform"', 'severity="warning"'),
    ),
)
