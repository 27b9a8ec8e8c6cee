"""PromQL built from the table of metrics: an unknown name or label is an error.

Design
------
Every gauge is queried with `max by (...)` over the labels that are shown. A daemon that moves, or a sidecar that starts
again, gets another `instance`; without the aggregation, a curve over weeks would change its name and colour each time.
`max` of a single NaN is NaN, so a non-finite value stays a gap.

`$__rate_interval` is at least four scrapes. In a view of weeks one point covers an hour: `peak` and `trough` use all
scrapes of that hour, where the plain value would show one scrape and miss the spike.
"""

from collections.abc import Sequence

from caboose_daemon.out.metrics.metric import JOB
from caboose_daemon.out.metrics.table import ENTRIES

ONE_JOB = f'{JOB}="$job"'
ANY_JOB = f'{JOB}=~"$job"'
ANY_DAEMON = 'instance=~"$instance"'
ANY_JOB_OF_DAEMONS = f"{ANY_JOB}, {ANY_DAEMON}"
WINDOW = "$__rate_interval"
SEVERITIES = {"info": 1, "warning": 2, "critical": 3}


def select(name: str, *matchers: str, job: str = ONE_JOB) -> str:
    """The series of one metric, for the chosen job, or for the chosen daemons if it has no job label."""
    entry = ENTRIES[name]
    own = job if JOB in entry.labels else ANY_DAEMON
    return f"{name}{{{', '.join((own, *matchers))}}}"


def grouped(operator: str, by: Sequence[str], inner: str) -> str:
    return f"{operator} by ({', '.join(by)}) ({inner})" if by else f"{operator}({inner})"


def gauge(name: str, *by: str, where: Sequence[str] = (), job: str = ONE_JOB, operator: str = "max") -> str:
    """The current value of a gauge."""
    _check(name, by)
    return grouped(operator, by, select(name, *where, job=job))


def peak(name: str, *by: str, where: Sequence[str] = (), job: str = ONE_JOB) -> str:
    """The highest value between two points of the curve."""
    _check(name, by)
    return grouped("max", by, f"max_over_time({select(name, *where, job=job)}[{WINDOW}])")


def trough(name: str, *by: str, where: Sequence[str] = (), job: str = ONE_JOB) -> str:
    """The lowest value between two points of the curve."""
    _check(name, by)
    return grouped("min", by, f"min_over_time({select(name, *where, job=job)}[{WINDOW}])")


def rate(name: str, *by: str, where: Sequence[str] = (), job: str = ONE_JOB) -> str:
    """The growth of a counter per second."""
    _check(name, by)
    return grouped("sum", by, f"rate({select(name, *where, job=job)}[{WINDOW}])")


def increase(name: str, *by: str, where: Sequence[str] = (), job: str = ONE_JOB, window: str = WINDOW) -> str:
    """The growth of a counter between two points of the curve, or within `window`."""
    _check(name, by)
    return grouped("sum", by, f"increase({select(name, *where, job=job)}[{window}])")


def by_severity(name: str, *by: str, job: str = ONE_JOB) -> str:
    """The severity of what is open as a number: 1 info, 2 warning, 3 critical."""
    _check(name, (*by, "severity"))
    weighed = [select(name, f'severity="{word}"', job=job) + f" * {weight}" for word, weight in SEVERITIES.items()]
    return grouped("max", by, " or ".join(weighed))


def _check(name: str, labels: Sequence[str]) -> None:
    entry = ENTRIES[name]
    known = {*entry.labels, "instance"}
    if not set(labels) <= known:
        raise ValueError(f"{name} has no label {sorted(set(labels) - known)}; it has {sorted(known)}")
