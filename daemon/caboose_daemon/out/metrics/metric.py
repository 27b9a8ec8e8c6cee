"""What a metric is: its type, labels, help, and how to read it. The entries are in `table`, by what they describe."""

from dataclasses import dataclass
from typing import Literal

from caboose_daemon.out.metrics.units import unit_of

Kind = Literal["gauge", "counter"]
JOB = "training_job"
MAX_LABEL = 128
MAX_TEXT = 2048


@dataclass(frozen=True)
class Metric:
    """One metric family."""

    name: str
    """As scraped: counters end in `_total`."""
    help: str
    tells: str
    labels: tuple[str, ...] = ()
    kind: Kind = "gauge"
    longest: int = MAX_LABEL
    """Characters of a label; more only where texts are exported."""

    @property
    def unit(self) -> str:
        return unit_of(self.name)


@dataclass(frozen=True)
class Section:
    """A group of metrics, one section of docs/metrics.md."""

    title: str
    about: str
    entries: tuple[Metric, ...]


def of_job(name: str, text: str, tells: str, *labels: str, kind: Kind = "gauge") -> Metric:
    """A metric with one series or more per job."""
    return Metric(name, text, tells, (JOB, *labels), kind)


def counted(name: str, text: str, tells: str, *labels: str) -> Metric:
    """A counter of that kind."""
    return of_job(name, text, tells, *labels, kind="counter")


def text_of_job(name: str, text: str, tells: str, *labels: str) -> Metric:
    """A metric whose labels are texts for people."""
    return Metric(name, text, tells, (JOB, *labels), longest=MAX_TEXT)
