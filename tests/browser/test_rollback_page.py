"""Rollback on the live page: what may be done, decisions with their reasons, and curves that stay readable."""

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from caboose_wire import Event
from support.obedient import Obedient, obedient_ranks
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import send_steps, simulated_ranks

pytestmark = pytest.mark.slow

MARKUP = "<img src=x onerror=hacked=1>"
TRACE = "name => document.getElementById('loss-chart').data?.filter(t => t.name === name).flatMap(t => t.x)"
ARROWS = "() => document.getElementById('loss-chart').layout.annotations.filter(a => a.showarrow).map(a => [a.ax, a.x])"
KEPT = """async ([current, rollbacks]) => {
  const { keptUntil } = await import("/static/curves.js");
  return [...keptUntil(current, rollbacks)].map(([attempt, step]) => [attempt, Number.isFinite(step) ? step : null]);
}"""


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that may act."""
    with running_daemon(tmp_path_factory.mktemp("acting"), "--rollback", "auto") as process:
        yield process


def break_at(job: Obedient, step: int) -> None:
    """From this step on the loss is high and soon not a number, until the ranks have gone back."""
    healthy, attempt = job.loss, job.attempt

    def loss(now: int) -> float:
        if now < step or job.attempt != attempt:
            return healthy(now)
        return 9.0 if now < step + 3 else math.nan

    job.loss = loss


def decided(daemon: DaemonProcess, job: str, state: str) -> Any:
    """The job's first decision, once this has become of it."""

    def look() -> Any:
        rows = daemon.get(f"/api/v1/jobs/{job}/decisions")["decisions"]
        return next((row for row in rows if row["state"] == state), None)

    found = wait_until(look, 30)
    assert found, f"no decision was {state}"
    return found


def drawn(page: Page, name: str) -> list[int]:
    return [step for step in page.evaluate(TRACE, name) or [] if step is not None]


def test_a_rollback_is_on_the_curve_with_why_and_what_it_undid_is_dimmed(
    acting: DaemonProcess, page: Page, job: str
) -> None:
    with obedient_ranks(acting.endpoint, job=job) as run:
        assert wait_until(lambda: run.step >= 40, 20)
        page.goto(f"{acting.url}?job={job}")
        expect(page.locator("#rollback-hint")).to_have_text("auto · ready to act")
        expect(page.locator("#rollback-list")).to_contain_text("3 rollbacks left today")
        expect(page.locator(".saved").first).to_contain_text("snapshot of step")
        expect(page.locator("#decisions")).to_be_hidden()
        broken = run.step + 5
        break_at(run, broken)
        done = decided(acting, job, "committed")
        target, boundary = done["target"], done["boundary"]

        newest = page.locator(".decision").first
        expect(newest.locator(".decision-what")).to_have_text(f"Done: {done['summary']}")
        expect(newest.locator(".badge")).to_have_text("committed")
        for line in done["explanation"][1:3]:
            expect(newest.locator(".why-lines")).to_contain_text(line)
        expect(page.locator("#rollback-list")).to_contain_text("2 rollbacks left today")
        expect(page.locator("#legend")).to_contain_text("undone by a rollback")
        for _ in range(2):  # live, and after loading again
            page.wait_for_function(
                "([trace, step]) => document.getElementById('loss-chart').data"
                "?.some(t => t.name === trace && t.x.some(x => x > step))",
                arg=["current", boundary],
            )
            undone = drawn(page, "undone")
            assert undone[0] == target, "it begins where it left the line"
            assert {broken, broken + 1, broken + 2} <= set(undone) <= set(range(target, boundary + 1))
            assert not [step for step in drawn(page, "current") if target < step <= boundary]
            assert set(range(1, target + 1)) <= set(drawn(page, "current")), "what it goes on from is not dimmed"
            assert drawn(page, "rollbacks") == [boundary]
            assert page.evaluate(ARROWS) == [[boundary, target]]
            expect(page.locator("#loss-chart")).to_contain_text("attempt 2")
            page.reload()
        expect(page.locator("#rollback-list")).to_contain_text("loss continues from there")


def test_advice_reads_as_what_would_be_done(daemon: DaemonProcess, page: Page, job: str) -> None:
    with obedient_ranks(daemon.endpoint, job=job) as run:
        assert wait_until(lambda: run.step >= 40, 20)
        break_at(run, run.step + 1)
        told = decided(daemon, job, "advised")
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator("#rollback-hint")).to_have_text("advise · advice only")
        expect(page.locator("#rollback-list")).to_contain_text("the run allows auto, the daemon advise")
        expect(page.locator("#rollback-list")).to_contain_text("paused while an incident is open")
        expect(page.locator(".decision-what")).to_have_text(f"Would {told['summary']}")
        expect(page.locator(".decision .badge")).to_have_text("advised")
        expect(page.locator("#legend")).to_contain_text("would be rolled back")
        assert drawn(page, "rollbacks") == [told["boundary"]]
        assert drawn(page, "undone") == []
        assert page.evaluate(ARROWS) == []


def test_the_projection_of_a_raised_loss_is_drawn_with_both_costs(daemon: DaemonProcess, page: Page, job: str) -> None:
    with obedient_ranks(daemon.endpoint, job=job) as run:
        assert wait_until(lambda: run.step >= 40, 20)
        healthy, broken = run.loss, run.step + 5
        run.loss = lambda now: healthy(now) if now < broken else 3.0 * healthy(now)
        decided(daemon, job, "advised")
        page.goto(f"{daemon.url}?job={job}")

        figure = page.locator("#rollback-projections .projection")
        expect(figure.locator("figcaption")).to_contain_text("steps of training lost")
        expect(figure.locator("figcaption")).to_contain_text("Going back")
        for name in ("band", "level", "past", "likely", "back"):
            expect(figure.locator(f".projection-{name}")).to_have_attribute("d", re.compile(r"^M[\d.]+ [\d.]+L"))
        expect(figure.locator("svg")).to_have_attribute("aria-label", re.compile("^Projection of the loss from step"))


@pytest.mark.long
@pytest.mark.slow
def test_checkpoints_come_with_their_health_and_the_best_is_marked(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job}) as ranks:
        send_steps(ranks, 1, 20)
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator("#headline-title")).to_have_text("Nothing wrong now")
        expect(page.locator("#rollback")).to_be_hidden()
        for step, loss in ((10, 1.5), (20, 2.5)):
            saved = {"path": f"ckpt/{MARKUP}/{step}", "step": step}
            ranks[0].send(Event(attempt=0, step=step, time=1.0, kind="checkpoint", fields=saved))
            ranks[0].send(Event(attempt=0, step=step, time=1.0, kind="validation", fields={"loss": loss}))
        entries = page.locator(".saved")
        expect(entries).to_have_count(2)
        expect(entries.nth(0)).to_contain_text("checkpoint of step 20unproven, validation 2.500")
        expect(entries.nth(1).locator(".badge")).to_have_text("best")
        expect(entries.nth(0).locator(".badge")).to_be_hidden()
        expect(entries.nth(1)).to_contain_text(f"ckpt/{MARKUP}/10")
        send_steps(ranks, 21, 125)
        expect(entries.nth(0)).to_contain_text("healthy")
        assert page.locator("img").count() == 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("current", "rollbacks", "expected"),
    [
        pytest.param(2, [], [[2, None]], id="a restart goes on from nothing that is drawn"),
        pytest.param(2, [{"attempt": 1, "target": 90}], [[2, None], [1, 90]], id="one rollback"),
        pytest.param(
            3,
            [{"attempt": 1, "target": 90}, {"attempt": 2, "target": 70}],
            [[3, None], [2, 70], [1, 70]],
            id="a second one further back undoes more of the first attempt",
        ),
        pytest.param(
            3,
            [{"attempt": 1, "target": 90}, {"attempt": 2, "target": 150}],
            [[3, None], [2, 150], [1, 90]],
            id="a second one into the second attempt leaves the first as it was",
        ),
        pytest.param(4, [{"attempt": 1, "target": 90}], [[4, None]], id="a restart after a rollback"),
    ],
)
def test_what_is_still_in_the_weights_is_known_across_rollbacks(
    daemon: DaemonProcess, page: Page, current: int, rollbacks: list[dict[str, int]], expected: list[list[int | None]]
) -> None:
    page.goto(f"{daemon.url}healthz")

    assert page.evaluate(KEPT, [current, rollbacks]) == expected
