"""Rollback on /metrics: what may be done, what could be gone back to, and decisions counted once, for good."""

from collections.abc import Callable

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from caboose_daemon.out.metrics.collector import StateCollector
from caboose_daemon.rollback.requests import ManualRequest
from caboose_daemon.rollback_state.record import MAX_DECISIONS
from caboose_wire import Event, Held
from support.guarded import Guarded, guarded

Read = Callable[..., float | None]


def metrics_of(run: Guarded) -> Read:
    """Reads one sample of a scrape made now; the same scraper each time."""
    registry = CollectorRegistry()
    registry.register(StateCollector(run.core.state, lambda: run.now, rollback=run.core.config.rollback))

    def read(name: str, **labels: str) -> float | None:
        families = text_string_to_metric_families(generate_latest(registry).decode())
        wanted = {"training_job": run.job.name, **labels}
        found = [s.value for f in families for s in f.samples if s.name == f"caboose_{name}" and s.labels == wanted]
        assert len(found) <= 1
        return found[0] if found else None

    return read


def outcomes(read: Read, *names: str, action: str = "rollback") -> list[float | None]:
    return [read("decisions_total", action=action, reason=name) for name in names]


def test_a_rollback_is_counted_with_what_it_cost() -> None:
    run = guarded().healthy(100)
    read = metrics_of(run)
    assert outcomes(read, "committed", "aborted", "failed") == [0.0, 0.0, 0.0], "so that an increase is seen"
    assert read("rollback_budget_left") == 3.0
    assert read("rollback_seconds") is None

    run.losses(*[9.0] * 60)

    (decision,) = run.committed
    assert decision.boundary is not None
    assert outcomes(read, "committed", "aborted", "failed") == [1.0, 0.0, 0.0]
    assert read("rollback_lost_steps_total") == decision.steps_lost > 0
    assert read("rollback_seconds") == 0.05
    assert read("rollback_budget_left") == 2.0
    assert read("job_attempt") == 2.0


@pytest.mark.parametrize(
    ("owner", "daemon", "expected"),
    [("auto", "auto", [2.0, 2.0, 2.0]), ("auto", "advise", [2.0, 1.0, 1.0]), ("off", "auto", [0.0, 2.0, 0.0])],
)
def test_the_mode_in_force_is_told_with_whose_it_is(owner: str, daemon: str, expected: list[float]) -> None:
    read = metrics_of(guarded(owner=owner, rollback={"mode": daemon}).healthy(3))

    assert [read("rollback_mode", stat=who) for who in ("job", "daemon", "effective")] == expected
    assert outcomes(read, "committed") == [0.0], "also where it is off: it may be switched on"


def test_advice_is_counted_as_advice() -> None:
    run = guarded(rollback={"mode": "advise"}).healthy(100).losses(*[9.0] * 60)

    assert outcomes(metrics_of(run), "advised", "committed") == [1.0, 0.0]


def test_only_what_every_rank_holds_ready_and_untainted_counts_as_a_snapshot() -> None:
    run = guarded().healthy(45)
    read = metrics_of(run)
    assert (read("snapshots_ready"), read("snapshot_age_steps")) == (4.0, 5.0)
    assert read("snapshot_every_steps") == 10.0

    whole = run.holdings(0)
    first = msgspec.structs.replace(whole, snapshots=whole.snapshots[:1], num_bytes=1024, snapshot_seconds=0.5)
    run.says(1, first)
    assert (read("snapshots_ready"), read("snapshot_age_steps")) == (1.0, 35.0)
    assert (read("snapshot_size_bytes"), read("snapshot_seconds")) == (1024.0, 0.5)

    run.says(1, msgspec.structs.replace(whole, snapshots=(Held(10, 10, 1.0, is_ready=False),)))
    assert (read("snapshots_ready"), read("snapshot_age_steps")) == (0.0, None)


def test_trouble_that_spends_the_budget_is_told_as_exhausted() -> None:
    run = guarded(budget=0).healthy(100)
    read = metrics_of(run)
    assert read("rollback_exhausted") == 0.0

    run.losses(*[9.0] * 60)
    assert read("rollback_exhausted") == 1.0
    assert outcomes(read, "exhausted", "committed") == [1.0, 0.0]


def test_a_counter_does_not_fall_when_old_decisions_are_forgotten() -> None:
    run = guarded().healthy(100).losses(*[9.0] * 60)
    read = metrics_of(run)
    assert outcomes(read, "committed", "refused") == [1.0, 0.0]

    for number in range(MAX_DECISIONS + 10):
        run.core.requests.ask(run.job, ManualRequest(to=7_000_000), run.now)
        if number % 100 == 0:
            read("job_up")
    assert not run.committed, "it is forgotten"
    assert outcomes(read, "committed", "refused") == [1.0, MAX_DECISIONS + 10.0]
    assert run.job.rollback.decisions[0].number > 1
    assert read("rollback_lost_steps_total") not in (None, 0.0)


def test_a_decision_on_its_way_is_counted_when_its_outcome_is_known() -> None:
    run = guarded().disobeys("deaf").healthy(100)
    read = metrics_of(run)
    assert run.core.requests.ask(run.job, ManualRequest(kind="snapshot"), run.now).state == "sent"
    run.healthy(2)
    assert outcomes(read, "expired", "failed", action="snapshot") == [None, 0.0]

    run.wait(60.0)
    assert outcomes(read, "expired", "failed", action="snapshot") == [1.0, 0.0]


def test_checkpoints_are_told_by_health_and_the_best_and_the_newest_healthy_by_step() -> None:
    run = guarded()
    for step, loss in ((20, 2.0), (40, 1.0), (160, 3.0)):
        run.until(step + 1)
        for kind, fields in (("checkpoint", {"path": f"ckpt/{step}", "step": step}), ("validation", {"loss": loss})):
            run.says(0, Event(attempt=0, step=step, time=run.now, kind=kind, fields=fields))
    run.healthy(5)
    read = metrics_of(run)

    assert [read("checkpoints", stat=health) for health in ("healthy", "unproven", "tainted")] == [2.0, 1.0, 0.0]
    assert [read("checkpoint_step", stat=which) for which in ("newest", "healthy", "best")] == [160.0, 40.0, 40.0]


def test_the_age_of_the_weights_and_updates_left_out_are_the_last_steps() -> None:
    run = guarded().plays(3, model_step=lambda rank, step: 100 + step, num_skipped=4)
    read = metrics_of(run)

    assert (read("model_step"), read("job_step"), read("skipped_updates_total")) == (103.0, 3.0, 4.0)
