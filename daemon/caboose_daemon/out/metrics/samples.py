"""Turns values into the metric families of the table. The only place that creates families."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from caboose_daemon.out.metrics.metric import JOB, MAX_LABEL
from caboose_daemon.out.metrics.names import Names
from caboose_daemon.out.metrics.table import ENTRIES
from caboose_daemon.out.metrics.units import unit_in_name


def label(value: str, longest: int = MAX_LABEL) -> str:
    """A label value that can always be exported: printable, at most `longest` characters, cut at the front.

    Values come from the network, and one lone surrogate would break the whole scrape. The front is cut because layer
    names differ at their end: `...attention.q_proj` and `...attention.k_proj`.
    """
    kept = value if len(value) <= longest else "\N{HORIZONTAL ELLIPSIS}" + value[1 - longest :]
    is_text = longest > MAX_LABEL
    return "".join(c if c.isprintable() or (is_text and c == "\n") else "?" for c in kept)


class MetricSamples:
    """The families of one scrape, created with their first sample, in the order of the table."""

    def __init__(self) -> None:
        self._families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        self._used: dict[str, set[tuple[str, ...]]] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """Adds a sample. Labels that are used already get a number, so that they stay unique."""
        used = self._used.setdefault(name, set())
        number = 2
        unique = labels
        while labels and unique in used:  # two groups of one name, or names that became equal when cut
            unique = (*labels[:-1], f"{labels[-1]} ({number})")
            number += 1
        used.add(unique)
        self._family(name).add_metric(unique, value)

    def _family(self, name: str) -> GaugeMetricFamily | CounterMetricFamily:
        family = self._families.get(name)
        if family is None:
            entry = ENTRIES[name]
            make = CounterMetricFamily if entry.kind == "counter" else GaugeMetricFamily
            family = make(name.removesuffix("_total"), entry.help, labels=entry.labels, unit=unit_in_name(name))
            self._families[name] = family
        return family

    def of(self, job: str, names: Names) -> "JobSamples":
        """The samples of one job; `names` are the names it has used."""
        return JobSamples(self, label(job), names)

    def __iter__(self) -> Iterator[Metric]:
        yield from (self._families[name] for name in ENTRIES if name in self._families)


class JobSamples:
    """Adds samples with one job's label."""

    def __init__(self, samples: MetricSamples, job: str, names: Names) -> None:
        self._samples = samples
        self._job = job
        self.names = names

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Adds a sample of the job, unless the value is unknown."""
        if value is not None:
            longest = ENTRIES[name].longest
            self._samples.add(name, value, self._job, *(label(text, longest) for text in labels))


assert all(entry.labels[:1] in ((), (JOB,)) or JOB not in entry.labels for entry in ENTRIES.values()), (
    "the job is the first label"
)
