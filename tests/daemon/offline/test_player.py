"""The player: a logged row becomes a step for the rules, and what a row does not hold is not made up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from caboose_daemon.config import Config
from caboose_daemon.jobs.engine import RuleStats
from caboose_daemon.offline.replay.logs import Column, Log
from caboose_daemon.offline.replay.player import PROGRESS_ROWS, Judged, play, rows
from caboose_daemon.rules.parts.finding import Finding
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.view import JobView
from caboose_wire import Event
from support.curves import falling, flat, noisy
from support.scenario import INF, NAN, watching

GAP = None
Values = Sequence[float | None]


def a_log(steps: Sequence[int], **columns: Values) -> Log:
    """A log with these columns; GAP where a row has none."""
    made = {
        name: Column(
            np.array([NAN if value is GAP else value for value in values], dtype=np.float64),
            np.array([value is not GAP for value in values], dtype=np.bool_),
        )
        for name, values in columns.items()
    }
    return Log("run.csv", np.array(steps, dtype=np.int64), made)


@dataclass(frozen=True)
class SeeingConfig(RuleConfig):
    """Nothing of its own."""


class Seeing(Rule[SeeingConfig]):
    """A rule that remembers what it was shown."""

    name = "seeing"
    config_class = SeeingConfig
    seen: ClassVar[list[tuple[int, JobView]]] = []
    """With the rule's own number, to tell attempts apart."""
    num_made: ClassVar[int] = 0

    def __init__(self, config: SeeingConfig) -> None:
        super().__init__(config)
        Seeing.num_made += 1
        self._number = Seeing.num_made

    def observe(self, view: JobView) -> Finding | None:
        self.seen.append((self._number, view))
        return None

    def resume(self, finding: Finding) -> None:
        pass


def seen(log: Log, monkeypatch: pytest.MonkeyPatch) -> list[JobView]:
    """The views the rules are shown."""
    return [view for _, view in seen_by(log, monkeypatch)]


def seen_by(log: Log, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, JobView]]:
    monkeypatch.setattr(Seeing, "seen", [])
    play(log, {"seeing": SeeingConfig()}, rules=(Seeing,))
    return Seeing.seen


def judged(log: Log) -> Judged:
    return play(log, Config().rules)


# Rows


def test_a_row_is_plain_numbers_and_a_gap_is_none() -> None:
    log = a_log([10, 20], loss=[2.0, 1.5], lr=[GAP, 1e-3], accuracy=[0.5, GAP])
    first, second = rows(log)

    assert (first.step, first.loss, first.grad_norm, first.lr, first.val_loss) == (10, 2.0, None, None, None)
    assert (second.loss, second.lr) == (1.5, 1e-3)
    assert (first.metrics, second.metrics) == ({"accuracy": 0.5}, {})


def test_a_nan_that_was_logged_is_no_gap() -> None:
    first, second = rows(a_log([1, 2], loss=[NAN, GAP]))

    assert first.loss is not None
    assert math.isnan(first.loss)
    assert second.loss is None


# Views


def test_a_row_is_a_step_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    (view,) = seen(a_log([7], loss=[2.0], grad_norm=[0.5], lr=[1e-3]), monkeypatch)

    step = view.step
    assert step is not None
    assert (step.step, step.mean_loss, step.num_present) == (7, 2.0, 1)
    assert (step.grad_norm, step.lr) == (0.5, (1e-3,))
    assert (view.job, view.world, view.attempt) == ("run.csv", 1, 1)


def test_what_a_row_has_a_gap_in_is_not_known_in_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log([1, 2], loss=[2.0, GAP], grad_norm=[GAP, 0.5], lr=[GAP, GAP])
    first, second = (view.step for view in seen(log, monkeypatch))

    assert first is not None
    assert second is not None
    assert first.mean_loss is not None
    assert (first.grad_norm, first.lr) == (None, ())
    assert second.mean_loss is None
    assert second.grad_norm is not None
    assert second.bad_loss_ranks == (), "a gap is no NaN"


def test_what_the_log_has_no_column_for_is_not_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    (view,) = seen(a_log([1], loss=[2.0]), monkeypatch)
    assert view.visible == {"loss"}

    (view,) = seen(a_log([1], loss=[2.0], grad_norm=[1.0], lr=[1e-3]), monkeypatch)
    assert view.visible == {"loss", "gradients", "lr"}


def test_a_validation_is_an_event_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = seen(a_log([10, 20], loss=[2.0, 1.9], val_loss=[GAP, 2.1]), monkeypatch)

    assert first.events == ()
    (event,) = second.events
    assert (event.kind, event.step, event.fields) == ("validation", 20, {"loss": 2.1})
    assert "evaluation" in second.regime.active


def test_what_was_declared_before_a_row_is_known_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log(range(40), loss=[2.0] * 40)
    switch = Event(attempt=0, step=30, time=0.0, kind="data_switch")
    log = Log(log.file, log.steps, log.columns, events={30: (switch,)})

    shown = seen(log, monkeypatch)
    assert [view.now for view in shown if "data_switch" in view.regime.began] == [30.0]


# Attempts


def test_a_step_that_goes_back_begins_a_new_attempt_with_fresh_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    by_rule = seen_by(a_log([1, 2, 3, 2, 3], loss=[2.0] * 5), monkeypatch)

    assert [view.attempt for _, view in by_rule] == [1, 1, 1, 2, 2]
    assert len({number for number, _ in by_rule[:3]}) == len({number for number, _ in by_rule[3:]}) == 1
    assert by_rule[0][0] != by_rule[3][0]


def test_a_step_that_is_logged_twice_is_the_same_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {view.attempt for view in seen(a_log([1, 2, 2, 3], loss=[2.0] * 4), monkeypatch)} == {1}


def test_a_restart_that_the_log_tells_of_begins_a_new_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log([1, 2, 3, 4], loss=[2.0] * 4)

    shown = seen(Log(log.file, log.steps, log.columns, restarts=frozenset({2})), monkeypatch)
    assert [view.attempt for view in shown] == [1, 1, 2, 2]


def test_a_log_from_step_zero_starts_up_and_one_from_the_middle_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    def regime(*steps: int) -> frozenset[str]:
        return seen(a_log(steps, loss=[2.0] * len(steps)), monkeypatch)[0].regime.active

    assert regime(0, 1, 2) == {"startup"}
    assert regime(50, 100, 150) == {"startup"}, "logged every fifty steps, this is the first row"
    assert regime(31214, 31215, 31216) == {"resume"}
    assert seen(a_log([5, 6, 0, 1], loss=[2.0] * 4), monkeypatch)[2].regime.active == {"resume"}


# What comes out


def test_an_empty_log_is_judged_to_nothing() -> None:
    result = judged(a_log([], loss=[]))

    assert (result.num_points, result.episodes, result.findings) == (0, [], [])


def test_a_log_of_one_row_is_judged() -> None:
    assert judged(a_log([5], loss=[2.0])).num_points == 1


def test_a_healthy_log_is_judged_to_nothing() -> None:
    losses = noisy(falling(800), 0.02).tolist()

    assert judged(a_log(range(800), loss=losses, lr=[1e-3] * 800)).findings == []


def test_rows_with_gaps_between_are_judged_as_they_come() -> None:
    """A loss on every tenth row, validations on others."""
    losses: list[float | None] = [GAP] * 2000
    losses[::10] = noisy(falling(200, memory=40), 0.02).tolist()
    validations: list[float | None] = [GAP] * 2000
    validations[5::100] = noisy(falling(20, 4.2, 1.6, 4), 0.005).tolist()

    assert judged(a_log(range(2000), loss=losses, val_loss=validations)).findings == []


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_loss_that_was_logged_as_no_number_is_found_at_its_step(value: float) -> None:
    losses = [*noisy(flat(50), 0.01).tolist(), *[value] * 5]
    result = judged(a_log(range(100, 155), loss=losses))

    assert (result.findings[0].rule, result.findings[0].step) == ("non_finite", 150)
    (episode,) = [episode for episode in result.episodes if episode.rule == "non_finite"]
    assert episode.is_open, "it had not ended with the log"


def test_episodes_come_in_the_order_of_their_detection_and_infos_are_only_among_them() -> None:
    losses = noisy(falling(600), 0.01)
    losses[200] *= 1.5
    losses[400:410] *= 4.0
    result = judged(a_log(range(600), loss=losses.tolist()))

    assert [(e.rule, e.first.step, str(e.severity)) for e in result.episodes] == [
        ("loss_spike", 200, "info"),
        ("loss_spike", 400, "critical"),
    ]
    assert {finding.step for finding in result.findings} >= set(range(401, 410))
    assert 200 not in {finding.step for finding in result.findings}
    assert all(finding.severity != "info" for finding in result.findings)


def test_what_was_open_when_the_run_was_started_again_ends_there() -> None:
    losses = [*noisy(flat(100), 0.01).tolist(), *[9.0] * 10, *noisy(flat(100), 0.01).tolist()]
    result = judged(a_log([*range(110), *range(50, 150)], loss=losses))

    (episode,) = [episode for episode in result.episodes if episode.rule == "loss_spike"]
    assert (episode.first.step, episode.last.step, episode.is_open, episode.attempt) == (100, 109, False, 1)


def test_rules_that_need_what_the_log_does_not_hold_are_not_run() -> None:
    stats = judged(a_log(range(50), loss=[2.0] * 50)).stats

    assert stats["loss_spike"].runs == 50
    assert stats.get("gradient_explosion", RuleStats()).runs == 0
    assert all(stat.failures == 0 for stat in stats.values())


def test_progress_is_told_now_and_then() -> None:
    told: list[int] = []
    num = 2 * PROGRESS_ROWS + 1
    play(a_log(range(num), loss=[2.0] * num), watching("non_finite", {}), told.append)

    assert told == [0, PROGRESS_ROWS, 2 * PROGRESS_ROWS]
