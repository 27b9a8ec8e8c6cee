"""When an incident is diagnosed: when it opens and changes, and again when it has lasted twice as long as then.

So the later steps of a long incident are evidence too, at a cost that does not grow with its length.
"""

from collections.abc import Callable, Iterable, Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.incidents.incident_log import IncidentLog

MIN_STEPS = 10
"""Steps after which an incident that only lasts is diagnosed again for the first time."""


def visit(
    log: IncidentLog, changed: Iterable[Incident], step: int, case_of: Callable[[Incident], Case]
) -> Iterator[Incident]:
    """Diagnoses the incidents that changed, and those that are due again; yields each with its new diagnosis."""
    changed = list(changed)
    numbers = {incident.number for incident in changed}
    lasting = [incident for incident in log.open if incident.number not in numbers and _is_due(incident, step)]
    for incident in (*changed, *lasting):
        yield log.diagnosed(incident.number, diagnose(case_of(incident))) or incident


def _is_due(incident: Incident, step: int) -> bool:
    if incident.diagnosis is None:
        return True
    age = incident.diagnosis.step - incident.opened_step
    return step - incident.opened_step >= 2 * max(MIN_STEPS, age)
