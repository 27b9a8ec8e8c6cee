"""Turns values into metric families, as the table has them; nothing else may make one."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from caboose_daemon.out.metrics.names import Names
from caboose_daemon.out.metrics.table import ENTRIES, JOB
from caboose_daemon.out.metrics.units import unit_in_name

MAX_LABEL = 128


def label(value: str) -> str:
    """A label value that can always be written: printable, at most 128 characters, the end of a longer one.

    Values come over the network, and one lone surrogate would break the whole scrape. Names of layers differ at their
    end: what is alike in `...attention.q_proj` and `...attention.k_proj` is what goes before.
    """
    kept = value if len(value) <= MAX_LABEL else "\N{HORIZONTAL ELLIPSIS}" + value[1 - MAX_LABEL :]
    return "".join(c if c.isprintable() and not 0xD800 <= ord(c) <= 0xDFFF else "?" for c in kept)


class Samples:
    """The families of one scrape, made when their first sample comes, given out in the table's order."""

    def __init__(self) -> None:
        self._families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        self._used: dict[str, set[tuple[str, ...]]] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """A sample of the daemon itself; no two of one family have the same labels."""
        used = self._used.setdefault(name, set())
        number = 2
        unique = labels
        while labels and unique in used:  # two groups of one name, or names that became alike
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
        """For the samples of one job, with the names that it has used."""
        return JobSamples(self, label(job), names)

    def __iter__(self) -> Iterator[Metric]:
        yield from (self._families[name] for name in ENTRIES if name in self._families)


class JobSamples:
    """Adds samples with one job's label."""

    def __init__(self, samples: Samples, job: str, names: Names) -> None:
        self._samples = samples
        self._job = job
        self.names = names

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """A sample of the job; nothing where the value is not known."""
        if value is not None:
            self._samples.add(name, value, self._job, *map(label, labels))


assert all(entry.labels[:1] in ((), (JOB,)) or JOB not in entry.labels for entry in ENTRIES.values()), (
    "the job is first"
)
