"""Every query of every dashboard returns data from real stores that scraped a real daemon."""

import math
import re
from typing import Any

import pytest

from caboose_daemon.out.metrics.table import ENTRIES
from support.dashboards import Query, chosen, filled, queries
from support.fleet import BIG, BROKEN, CRASHED, DONE, QUIET, REAL
from support.prometheus import Store
from support.watched_fleet import WatchedFleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ALL = list(queries())
ROUTERS = ("router_entropy_ratio", "router_dead_experts_ratio")
STORES = ("prometheus", "victoria-metrics")
NOT_IN_THE_REAL_RUN = {
    "caboose_blind": "its agent sees everything",
    "caboose_clip_ratio": "it does not clip",
    "caboose_loss_scale": "it trains in float32",
    "caboose_tokens_per_second": "it reports samples, not tokens",
    "caboose_user_metric": "it reports none",
    "caboose_validation_loss": "it does not validate",
    "caboose_validation_metric": "it does not validate",
    "caboose_validation_step": "it does not validate",
    "caboose_checkpoint_step": "it saves no checkpoint",
    "caboose_checkpoints": "it saves no checkpoint",
    "caboose_rollback_seconds": "it was not rolled back",
    "caboose_rank_device_memory_bytes": "it trains on a CPU",
    "caboose_rank_device_utilization_ratio": "it trains on a CPU",
    **{
        f"caboose_snapshot{of}": "it keeps none"
        for of in ("_age_steps", "_every_steps", "_size_bytes", "_seconds", "s_ready")
    },
    **{f"caboose_part_{of}": "it trains one model" for of in ("loss", "gradient_norm", "learning_rate")},
    **{f"caboose_{of}_dead_units_ratio": "it has no ReLU" for of in ("layer", "depth", "worst_layer")},
    **{f"caboose_{of}_saturated_units_ratio": "nor a sigmoid" for of in ("layer", "depth", "worst_layer")},
    **{f"caboose_{of}_{name}": "no experts" for of in ("layer", "worst_layer") for name in ROUTERS},
}
"""Series that the small real job does not have, and why. It also has no non-finite step and no rollback."""
every_query = pytest.mark.parametrize("query", ALL, ids=str)
every_store = pytest.mark.parametrize("store", STORES)


def ask(fleet: WatchedFleet, store: Store, query: Query, job: str) -> list[dict[str, Any]]:
    """The series with at least one value in the time range."""
    expression = filled(query.expression, chosen(job))
    if query.kind == "variable":
        values = store.label_values(query.label, expression, fleet.start, fleet.stop)
        return [{"metric": {query.label: value}} for value in values]
    # An instant query is evaluated at every second: a person could have seen each of these answers.
    found = store.over(expression, fleet.start, fleet.stop, 1.0)
    return [series for series in found if any(not math.isnan(float(value)) for _, value in series["values"])]


@every_store
@every_query
def test_every_query_returns_data(fleet: WatchedFleet, store: str, query: Query) -> None:
    jobs = {"caboose_part_": QUIET, "caboose_incident_unresolved": BROKEN}
    job = next((job for name, job in jobs.items() if name in query.expression), BIG)
    found = ask(fleet, fleet.stores[store], query, job)

    assert found, query.expression
    wanted = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
    if query.kind != "annotation":
        for series in found:
            assert wanted <= series["metric"].keys(), "its legend uses a label that the series lacks"
    if query.columns:
        shown = set(query.columns)
        assert all(series["metric"].keys() & shown for series in found), "a table row without any of its labels"


@every_query
def test_every_query_returns_data_of_the_real_run(fleet: WatchedFleet, query: Query) -> None:
    names = set(re.findall(r"\bcaboose_\w+", query.expression))
    if query.kind == "annotation" and query.place.endswith("incidents"):
        return  # depends on the severity; checked by the next test
    if query.place in ("All decisions", "Ended and not acknowledged"):
        return  # not certain: depends on whether its spike led to advice, and is over when it ends
    is_missing = bool(names & NOT_IN_THE_REAL_RUN.keys()) or query.place in ("Not finite", "Rolled back")

    assert bool(ask(fleet, fleet.prometheus, query, REAL)) is not is_missing, query.expression


def test_the_real_runs_incident_is_marked_with_its_rule_and_cause(fleet: WatchedFleet) -> None:
    marks = [q for q in ALL if (q.dashboard, q.kind) == ("caboose-run", "annotation") and q.place.endswith("incidents")]
    found = [series["metric"] for mark in marks for series in ask(fleet, fleet.prometheus, mark, REAL)]

    assert len(marks) == 2
    assert {"lr_schedule", "loss_spike"} & {labels["rule"] for labels in found}
    assert all(labels["cause"] for labels in found)


@every_store
def test_every_metric_of_the_table_has_been_scraped(fleet: WatchedFleet, store: str) -> None:
    names = fleet.stores[store].get("label/__name__/values", start=fleet.start, end=fleet.stop)

    assert sorted(ENTRIES.keys() - set(names)) == []


def test_a_loss_that_is_nan_is_a_gap_and_marked(fleet: WatchedFleet) -> None:
    (loss,) = [q for q in ALL if (q.dashboard, q.place, q.ref) == ("caboose-run", "Training loss", "A")]
    (mark,) = [q for q in ALL if (q.dashboard, q.place) == ("caboose-run", "Not finite")]
    (series,) = fleet.prometheus.over(filled(loss.expression, chosen(BIG)), fleet.start, fleet.stop, 1.0)
    gap = [time for time, value in series["values"] if math.isnan(float(value))]
    (marked,) = fleet.prometheus.over(filled(mark.expression, chosen(BIG)), fleet.start, fleet.stop, 1.0)

    assert 1 <= len(gap) <= 5, "two seconds of steps were not finite"
    assert set(gap) & {time for time, _ in marked["values"]}


def test_the_health_of_jobs_differs(fleet: WatchedFleet) -> None:
    (health,) = [q for q in ALL if (q.dashboard, q.place) == ("caboose-fleet", "Job health")]
    found = fleet.prometheus.now(filled(health.expression, chosen(".*")), fleet.stop)
    severity = {series["metric"]["training_job"]: float(series["value"][1]) for series in found}

    assert severity.keys() == {BIG, BROKEN, CRASHED, DONE, QUIET, REAL}
    assert severity[BIG] >= 2
    assert severity[DONE] == 0
