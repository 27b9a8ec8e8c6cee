"""PromQL from the table of metrics: a name or label that is not in it cannot be written.

Design
------
Every gauge is asked for with `max by (...)` over the labels that are shown. A daemon that is moved, or a sidecar that
is started anew, gets another `instance`; without that, a curve over weeks would change its name and colour each time.
`max` of a single NaN is NaN, so a value that was not finite stays a gap.

`$__rate_interval` is at least four scrapes. Over a view of weeks one point stands for an hour: `peak` and `trough` look
at all of it, where the plain value would show one scrape and miss the spike.
"""

from collections.abc import Sequence

from caboose_daemon.out.metrics.table import ENTRIES, JOB

ONE_JOB = f'{JOB}="$job"'
ANY_JOB = f'{JOB}=~"$job"'
ANY_DAEMON = 'instance=~"$instance"'
WINDOW = "$__rate_interval"
SEVERITIES = {"info": 1, "warning": 2, "critical": 3}


def select(name: str, *matchers: str, job: str = ONE_JOB) -> str:
    """The series of one metric: of the chosen job, or of the chosen daemons where it is not a job's."""
    entry = ENTRIES[name]
    own = job if JOB in entry.labels else ANY_DAEMON
    return f"{name}{{{', '.join((own, *matchers))}}}"


def grouped(operator: str, by: Sequence[str], inner: str) -> str:
    """An aggregation."""
    return f"{operator} by ({', '.join(by)}) ({inner})" if by else f"{operator}({inner})"


def gauge(name: str, *by: str, where: Sequence[str] = (), job: str = ONE_JOB, operator: str = "max") -> str:
    """A gauge as it stands."""
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
    """A counter's growth per second."""
    _check(name, by)
    return grouped("sum", by, f"rate({select(name, *where, job=job)}[{WINDOW}])")


def increase(name: str, *by: str, where: Sequence[str] = (), job: str = ONE_JOB, window: str = WINDOW) -> str:
    """How many were added between two points of the curve, or within a window."""
    _check(name, by)
    return grouped("sum", by, f"increase({select(name, *where, job=job)}[{window}])")


def by_severity(name: str, *by: str, job: str = ONE_JOB) -> str:
    """What is open, as a number that rises with its severity: 1 info, 2 warning, 3 critical."""
    _check(name, (*by, "severity"))
    weighed = [select(name, f'severity="{word}"', job=job) + f" * {weight}" for word, weight in SEVERITIES.items()]
    return grouped("max", by, " or ".join(weighed))


def _check(name: str, labels: Sequence[str]) -> None:
    entry = ENTRIES[name]
    known = {*entry.labels, "instance"}
    if not set(labels) <= known:
        raise ValueError(f"{name} has no label {sorted(set(labels) - known)}; it has {sorted(known)}")
