"""The families of a scrape as OTLP metrics, under the same names, labels and values.

Design
------
The collector of `/metrics` is read, so a metric is defined once. A counter keeps its `_total`: a Prometheus that
receives it adds no second one. Units are set where the name has them (seconds, bytes); for any other unit a Prometheus
would change the name. An empty label is left out, as Prometheus does.
"""

from collections.abc import Iterable, Mapping

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family

from caboose_daemon.out.metrics.metric import JOB
from caboose_daemon.out.metrics.units import unit_in_name

UNITS = {"seconds": "s", "bytes": "By"}
NANO = 1_000_000_000


def metrics_data(
    families: Iterable[Family],
    resource: Resource,
    scope: InstrumentationScope,
    *,
    now: float,
    started: float,
    created: Mapping[str, float],
) -> MetricsData:
    """All families at `now`. `created` has when each job was first seen: since then its counters count."""
    metrics = [metric for family in families for metric in [_metric(family, now, started, created)] if metric]
    scoped = ScopeMetrics(scope=scope, metrics=metrics, schema_url="")
    return MetricsData(resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scoped], schema_url="")])


def _metric(family: Family, now: float, started: float, created: Mapping[str, float]) -> Metric | None:
    is_counter = family.type == "counter"
    name = f"{family.name}_total" if is_counter else family.name
    points = [
        NumberDataPoint(
            attributes={key: text for key, text in sample.labels.items() if text},
            start_time_unix_nano=nano(created.get(sample.labels.get(JOB, ""), started)) if is_counter else 0,
            time_unix_nano=nano(now),
            value=float(sample.value),
        )
        for sample in family.samples
        if sample.name == name
    ]
    if not points:
        return None
    data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points)
    return Metric(name, family.documentation, UNITS.get(unit_in_name(name), ""), data)


def nano(time: float) -> int:
    return int(time * NANO)
