"""When an incident is diagnosed: as it opens and changes, and again when it has lasted twice as long as then.

So a spike that goes on is seen in the light of what became of it, at a cost that does not grow with its length.
"""

from collections.abc import Callable, Iterable, Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.incidents.incident_log import IncidentLog

MIN_LOOK = 10
"""Steps after which an incident that only lasts is looked at again, for the first time."""


def visit(
    log: IncidentLog, news: Iterable[Incident], step: int, case_of: Callable[[Incident], Case]
) -> Iterator[Incident]:
    """Diagnoses the incidents that are news, and those it is time for; yields them as they now stand."""
    news = list(news)
    numbers = {incident.number for incident in news}
    lasting = [incident for incident in log.open if incident.number not in numbers and _is_due(incident, step)]
    for incident in (*news, *lasting):
        yield log.diagnosed(incident.number, diagnose(case_of(incident))) or incident


def _is_due(incident: Incident, step: int) -> bool:
    if incident.diagnosis is None:
        return True
    age = incident.diagnosis.step - incident.opened_step
    return step - incident.opened_step >= 2 * max(MIN_LOOK, age)
