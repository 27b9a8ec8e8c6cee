"""Prometheus scrapes the daemon and writes to VictoriaMetrics: dashboards and alerts answer the same from both.

Gauges are the same to 11 digits, which is what VictoriaMetrics keeps. `rate` and `increase` differ by definition:
Prometheus extrapolates from the samples in the window, VictoriaMetrics counts from the last sample before it. So they
are compared once the window is covered, with the tolerances listed here. NaN is no value in VictoriaMetrics.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.alerts import rules
from support.dashboards import Query, chosen, filled, queries
from support.fleet import BIG, BROKEN, QUIET, REAL
from support.processes import DaemonProcess, wait_until
from support.prometheus import Store, free_port, running_prometheus, running_victoria
from support.ranks import send_steps, simulated_ranks
from support.watched_fleet import REMOTE, WatchedFleet, watched_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STORY_SECONDS = 30.0
STEPS = 160
JOBS = (BIG, QUIET, REAL, BROKEN)
DIGITS = 1e-11
CLOCK_SECONDS = 1e-5
"""Of `time()` minus a time stamp: a stamp of ten digits before the point has few after it."""
LOGARITHM = 1e-11
"""Of a logarithm near 0."""
WINDOW_SECONDS = 10
"""Of `rate` and `increase`: ten scrapes, fewer than in use (20 at 15 s and 5 minutes), so the edges weigh more."""
COVERED_SECONDS = WINDOW_SECONDS + 3
SHARE = 0.2
"""Two scrapes of ten: one at each edge of the window."""
SAME_SAMPLES = WINDOW_SECONDS - 1
"""The window of VictoriaMetrics with the samples of that of Prometheus: it adds the last one before it."""
NEW_SERIES = {
    "Rolled back": 1.0,
    "Decisions by outcome": 1.0,
    "CabooseRolledBack": 1.0,
    "training_job:caboose_incidents:increase1d": 3.0,
}
"""Counters whose series begin with what they count: VictoriaMetrics counts that, Prometheus does not."""
COUNTED = re.compile(r"\b(rate|increase|delta|irate|deriv)\(")
LONG_WINDOW = re.compile(r"\[\d+[mhd]\]")
Labels = tuple[tuple[str, str], ...]
Answer = dict[Labels, float]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedFleet]:
    """30 s of several jobs, one of them real, scraped by Prometheus and written on by it."""
    directory = tmp_path_factory.mktemp("written")
    with watched_fleet(
        directory, seconds=STORY_SECONDS, steps=STEPS, with_victoria=False, is_written_on=True
    ) as watched:
        counters = 'sum by (__name__) ({__name__=~"caboose_.+_total"})'
        last = int(watched.stop)
        assert wait_until(
            lambda: (
                answer(watched.prometheus, counters, last)
                == pytest.approx(answer(watched.stores[REMOTE], counters, last), rel=DIGITS)
            ),
            30,
            every=0.5,
        ), "what Prometheus scraped has not arrived"
        yield watched


def answer(store: Store, expression: str, time: float) -> Answer:
    """The series of an instant query; NaN included where the store has it."""
    return {tuple(sorted(s["metric"].items())): float(s["value"][1]) for s in store.now(expression, time)}


def both(fleet: WatchedFleet, expression: str, time: float) -> tuple[Answer, Answer]:
    """What Prometheus and VictoriaMetrics answer, without the series that are NaN in Prometheus."""
    ours, theirs = answer(fleet.prometheus, expression, time), answer(fleet.stores[REMOTE], expression, time)
    unknown = {labels for labels, value in ours.items() if math.isnan(value)}
    return tuple({k: v for k, v in each.items() if k not in unknown} for each in (ours, theirs))  # type: ignore[return-value]


def asked() -> dict[str, str]:
    """Every expression of panels, annotations, alerts and recording rules, with its place."""
    found: dict[str, str] = {}
    for query in panel_queries():
        for job in JOBS:
            found.setdefault(filled(query.expression, chosen(job, WINDOW_SECONDS)), query.place)
    for rule in rules():
        found.setdefault(rule.fields["expr"], rule.name)
    return found


def panel_queries() -> list[Query]:
    return [query for query in queries() if query.kind != "variable"]


def times(fleet: WatchedFleet, after: float) -> list[float]:
    """Moments of the story, three seconds apart; of a part of a second the stores would keep different digits."""
    first, last = math.ceil(fleet.start + after), math.floor(fleet.stop)
    assert last - first >= 12, "the story is long enough to be asked about"
    return [float(time) for time in range(first, last, 3)]


def test_gauges_are_the_same_to_eleven_digits(fleet: WatchedFleet) -> None:
    expressions = {e: place for e, place in asked().items() if not COUNTED.search(e)}
    wrong = []
    for expression, place in expressions.items():
        absolute = CLOCK_SECONDS if "time()" in expression else LOGARITHM if "log10" in expression else 0.0
        for time in times(fleet, 2.5):
            ours, theirs = both(fleet, expression, time)
            is_same = ours.keys() == theirs.keys() and all(
                math.isclose(value, theirs[labels], rel_tol=DIGITS, abs_tol=absolute) for labels, value in ours.items()
            )
            wrong += [] if is_same else [(place, expression, time - fleet.start, ours, theirs)]

    assert len(expressions) > 300
    assert wrong == []


def test_rates_and_increases_are_the_same_within_their_tolerance(fleet: WatchedFleet) -> None:
    expressions = {
        LONG_WINDOW.sub(f"[{WINDOW_SECONDS}s]", e): place for e, place in asked().items() if COUNTED.search(e)
    }
    wrong = []
    for expression, place in expressions.items():
        of_same_samples = expression.replace(f"[{WINDOW_SECONDS}s]", f"[{SAME_SAMPLES}s]")
        absolute = NEW_SERIES.get(place, 0.0)
        for time in times(fleet, COVERED_SECONDS):
            ours, theirs = both(fleet, expression, time)
            before = answer(fleet.prometheus, expression, time - WINDOW_SECONDS)
            known = [labels for labels in ours.keys() & theirs.keys() if labels in before]
            far = [k for k in known if not math.isclose(ours[k], theirs[k], rel_tol=SHARE, abs_tol=absolute)]
            again = answer(fleet.stores[REMOTE], of_same_samples, time) if far else {}
            wrong += [
                (place, expression, round(time - fleet.start, 1), labels, ours[labels], theirs[labels], again[labels])
                for labels in far
                if labels in again and not math.isclose(ours[labels], again[labels], rel_tol=SHARE, abs_tol=absolute)
            ]

    assert len(expressions) > 50
    assert wrong == []


def test_the_same_alerts_fire_for_the_same_jobs(fleet: WatchedFleet) -> None:
    alerts = [rule for rule in rules() if rule.is_alert]
    wrong, fired = [], set()
    for rule in alerts:
        for time in times(fleet, COVERED_SECONDS):
            ours, theirs = both(fleet, rule.fields["expr"], time)
            fired |= {rule.name} if ours else set()
            wrong += [] if ours.keys() == theirs.keys() else [(rule.name, time - fleet.start, ours, theirs)]

    assert len(fired) >= 3, "the story has incidents"
    assert wrong == []


def test_no_panel_is_empty_in_one_and_filled_in_the_other(fleet: WatchedFleet) -> None:
    def is_filled(store: Store, query: Query, job: str) -> bool:
        found: list[dict[str, Any]] = store.over(
            filled(query.expression, chosen(job, WINDOW_SECONDS)), fleet.start, fleet.stop, 1.0
        )
        return any(not math.isnan(float(value)) for series in found for _, value in series["values"])

    wrong, num_filled = [], 0
    for query in panel_queries():
        for job in JOBS:
            ours, theirs = (is_filled(store, query, job) for store in (fleet.prometheus, fleet.stores[REMOTE]))
            num_filled += ours
            wrong += [] if ours == theirs else [(str(query), job, ours, theirs)]

    assert num_filled > 300
    assert wrong == []


def test_what_was_scraped_while_it_was_away_arrives_later(daemon: DaemonProcess, tmp_path: Path) -> None:
    target, port = daemon.url.removeprefix("http://").rstrip("/"), free_port()
    with (
        running_prometheus(tmp_path / "prometheus", target, remote=f"http://127.0.0.1:{port}") as prometheus,
        simulated_ranks(daemon.endpoint, 2, {"job": "gpt"}) as ranks,
    ):
        send_steps(ranks, 1, 10)
        assert wait_until(lambda: len(kept(prometheus)) >= 5, 30, every=0.5)
        away = kept(prometheus)
        with running_victoria(tmp_path / "victoria", port=port) as victoria:
            assert wait_until(lambda: away <= kept(victoria), 30, every=0.5)


def kept(store: Store) -> set[tuple[float, str]]:
    """The steps of the only job that were scraped, with the time of each scrape."""
    found = store.now("caboose_job_step[1h]")
    return {(float(time), str(value)) for series in found for time, value in series["values"]}
