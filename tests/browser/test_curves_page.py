"""The curves in a real browser: smoothing, zooming into detail, throughput and phases, live and from the keyboard."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from caboose_wire import Phases
from support.long_run import HELLO, JOB, write_long_run
from support.processes import DaemonProcess, running_daemon
from support.ranks import send_steps, simulated_ranks

pytestmark = pytest.mark.slow

LONG, WORLD = 6000, 2
TRACE = """([chart, name]) => {
  const trace = document.getElementById(`${chart}-chart`).data?.find((trace) => trace.name === name);
  return trace && { x: trace.x, y: trace.y, text: trace.hovertext ?? [] };
}"""
RANGE = "() => document.getElementById('loss-chart').layout?.xaxis.range"


def trace(page: Page, chart: str, name: str, step: int) -> Any:
    """A curve as the chart has it, once it has come to this step."""
    page.wait_for_function(
        f"(asked) => ({TRACE})(asked.of)?.x.includes(asked.step)", arg={"of": [chart, name], "step": step}
    )
    return page.evaluate(TRACE, [chart, name])


@pytest.fixture(scope="module")
def long_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that finds a run of some thousand steps in its journal."""
    directory: Path = tmp_path_factory.mktemp("long")
    write_long_run(directory, LONG, WORLD)
    with running_daemon(directory) as process:
        yield process


def test_throughput_and_phases_are_drawn_and_go_on_live(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 20, num_samples=8)
        page.goto(f"{daemon.url}?job={job}")
        assert trace(page, "throughput", "current", 20)["y"] == pytest.approx([160.0] * 20)
        expect(page.locator("#throughput-hint")).to_have_text("samples per second")
        slow = Phases(total=0.4, data=0.31, forward=0.03, backward=0.05, optimizer=0.02)  # more than the whole
        send_steps(ranks, 21, 21, num_samples=8, phases=slow)
        drawn = trace(page, "throughput", "current", 21)
        assert drawn["y"][-1] == pytest.approx(40.0)
        assert drawn["text"][-1] == "step 21\n40.00 samples/s"
        step = trace(page, "phase", "step", 21)
        assert step["y"][0] == pytest.approx(100.0), "in milliseconds"
        assert step["text"][0].split("\n")[1:] == [
            "step time 100\u202fms",
            "optimizer 10.0\u202fms (10\u202f%)",
            "backward 50.0\u202fms (50\u202f%)",
            "forward 30.0\u202fms (30\u202f%)",
            "data 10.0\u202fms (10\u202f%)",
        ], "the topmost first; nothing is left over for other"
        assert step["y"][-1] == pytest.approx(410.0), "never less than its parts"
        expect(page.locator("#phase-legend li").last).to_contain_text("data")
        page.set_viewport_size({"width": 3840, "height": 2160})
        assert page.evaluate("document.documentElement.scrollWidth") == 3840
        page.set_viewport_size({"width": 1400, "height": 900})


def test_what_a_run_does_not_tell_is_not_made_up(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job, "blind": {"phases": "a compiled step"}}) as ranks:
        send_steps(ranks, 1, 5, phases=Phases(total=0.2))
        page.goto(f"{daemon.url}?job={job}")
        assert trace(page, "throughput", "current", 5)["y"] == pytest.approx([5.0] * 5)
        expect(page.locator("#throughput-hint")).to_have_text("steps per second")
        expect(page.locator("#throughput-note")).to_contain_text("does not report the number of samples")
        expect(page.locator("#phase-note")).to_have_text("Not monitored: a compiled step")
        expect(page.locator("#phase-legend li")).to_have_text(["other 100\u202f%"])


def test_smoothing_is_chosen_with_the_keyboard_and_never_crosses_a_nan(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job}) as ranks:
        for step in range(1, 41):
            send_steps(ranks, step, step, loss=math.nan if step == 21 else 2.0 + step % 2 + (5.0 if step > 21 else 0.0))
        page.goto(f"{daemon.url}?job={job}")
        raw = trace(page, "loss", "current", 40)
        page.locator("#smoothing input[value=off]").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        smooth = trace(page, "loss", "current, smooth", 40)
        behind = trace(page, "loss", "current, raw", 40)
        assert (behind["x"], behind["y"]) == (raw["x"], raw["y"]), "what was measured stays in sight"
        assert smooth["x"] == raw["x"]
        hole = raw["y"].index(None)
        assert smooth["y"][hole] is None
        assert smooth["y"][0] == raw["y"][0] == 3.0, "no bias towards zero"
        assert smooth["y"][hole + 1] == raw["y"][hole + 1] == 7.0, "it begins anew"
        assert 2.3 < smooth["y"][hole - 1] < 2.7, "between the two levels"
        assert smooth["text"][0] == "step 1\nloss 3.000\n3.000 to 3.000\nsmooth 3.000"
        expect(page.locator("#legend")).to_contain_text("smooth, half-life 6 steps")
        page.reload()
        trace(page, "loss", "current, smooth", 40)
        expect(page.locator("#smoothing input[value=strong]")).to_be_checked()
        page.locator("#smoothing input[value=off]").check()
        trace(page, "loss", "current", 40)


def test_zooming_in_shows_every_step_from_the_journal_while_the_run_goes_on(
    long_daemon: DaemonProcess, page: Page
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "from=" in request.url else None)
    page.goto(f"{long_daemon.url}?job={JOB}")
    overview = trace(page, "loss", "current", LONG)
    assert len(overview["x"]) <= 1001
    charts, chart = page.locator("#charts"), page.locator("#loss-chart")
    expect(charts).to_have_attribute("data-detail", "overview")

    chart.focus()
    for key in ("+", "+", "+", "ArrowLeft"):
        page.keyboard.press(key)
    expect(charts).to_have_attribute("data-detail", "detail")
    assert len(asked) <= 2, "asked for once the choice was made, not on the way to it"
    low, high = page.evaluate(RANGE)
    assert high - low == pytest.approx(LONG / 8, rel=0.1)
    steps = [step for step in page.evaluate(TRACE, ["loss", "current"])["x"] if low <= step <= high]
    assert steps == list(range(math.ceil(low), math.floor(high) + 1)), "one by one, without a gap"
    assert page.evaluate("document.getElementById('phase-chart').layout.xaxis.range") == [low, high]

    with simulated_ranks(long_daemon.endpoint, WORLD, HELLO) as ranks:
        send_steps(ranks, LONG + 1, LONG + 20)
        expect(page.locator("#tiles .value").first).to_have_text("6\u202f020")
        assert page.evaluate(RANGE) == [low, high]
    page.get_by_role("button", name="Show all steps").press("Enter")
    expect(charts).to_have_attribute("data-detail", "overview")
    assert trace(page, "loss", "current", LONG + 20)["x"][: len(overview["x"])] == overview["x"]
    expect(page.locator("#zoom-in")).to_be_focused()


def test_the_point_under_the_pointer_is_named_and_a_small_move_is_no_range(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job}) as ranks:
        send_steps(ranks, 1, 50)
        page.goto(f"{daemon.url}?job={job}")
        trace(page, "loss", "current", 50)
        chart = page.locator("#loss-chart")
        tip = chart.locator(".chart-tip")
        area = chart.bounding_box()
        assert area is not None
        page.mouse.move(area["x"] + area["width"] / 2, area["y"] + area["height"] / 2)
        expect(tip).to_contain_text(re.compile(r"loss 1\.9\d\d"))
        expect(tip.locator("span").first).to_have_text(re.compile(r"^step 2\d$"))
        page.mouse.down()
        page.mouse.move(area["x"] + area["width"] / 2 + 3, area["y"] + area["height"] / 2)
        page.mouse.up()
        expect(page.locator("#zoom-all")).to_be_hidden()
        page.mouse.move(0, 0)
        expect(tip).to_be_hidden()


@pytest.mark.long
def test_a_range_is_chosen_by_dragging_and_one_at_the_end_follows_the_run(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job}) as ranks:
        send_steps(ranks, 1, 100)
        page.goto(f"{daemon.url}?job={job}")
        trace(page, "loss", "current", 100)
        area = page.locator("#loss-chart canvas").first.bounding_box()
        assert area is not None
        across = [area["x"] + area["width"] * share for share in (0.6, 0.999)]
        page.mouse.move(across[0], area["y"] + 50)
        page.mouse.down()
        page.mouse.move(across[1], area["y"] + 60, steps=4)
        page.mouse.up()
        expect(page.locator("#zoom-all")).to_be_visible()
        page.wait_for_function(f"() => ({RANGE})()[0] > 50")
        low, high = page.evaluate(RANGE)
        send_steps(ranks, 101, 110)
        trace(page, "loss", "current", 110)
        assert page.evaluate(RANGE) == [pytest.approx(low + 10, abs=1), pytest.approx(high + 10, abs=1)]
        page.get_by_role("button", name="Zoom out").click()
        page.get_by_role("button", name="Zoom out").click()
        expect(page.locator("#zoom-all")).to_be_hidden()
        expect(page.locator("#zoom-out")).to_have_attribute("aria-disabled", "true")
