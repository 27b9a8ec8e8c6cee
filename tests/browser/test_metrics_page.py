"""Metrics and validations on the page, gaps and spikes, axes, links to a view, exports, other runs."""

import csv
import io
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from caboose_wire import Event, Group, Layer, Phases
from support.long_run import JOB, SPIKE, write_long_run
from support.processes import DaemonProcess, running_daemon
from support.ranks import LAYERS, SimulatedRank, a_report, send_steps, simulated_ranks

pytestmark = pytest.mark.slow

GROUPS = (Group("decay", "AdamW"), Group("no_decay", "AdamW"))
LAYERS_OF_GROUPS = tuple(Layer(layer.name, layer.numel, group=row % 2) for row, layer in enumerate(LAYERS))
HELLO = {"groups": GROUPS, "layers": LAYERS_OF_GROUPS}
TRACE = """([id, name]) => {
  const trace = document.getElementById(id)?.data?.find((trace) => trace.name === name);
  return trace && { x: trace.x, y: trace.y, text: trace.hovertext ?? [] };
}"""
RANGE = "() => document.getElementById('loss-chart').layout?.xaxis.range"


def trace(page: Page, chart: str, name: str, num: int = 1) -> Any:
    """A curve as the chart has it, once it has so many points."""
    page.wait_for_function(f"([of, num]) => ({TRACE})(of)?.x.length >= num", arg=[[chart, name], num])
    return page.evaluate(TRACE, [chart, name])


def validate(ranks: list[SimulatedRank], step: int, **fields: float) -> None:
    """Every rank declares the same validation."""
    for rank in ranks:
        rank.send(Event(attempt=0, step=step, time=1000.0 + step, kind="validation", fields=fields))


def test_metrics_validations_and_groups_are_drawn_live_and_broken_at_a_gap(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job, **HELLO}) as ranks:
        for step in (*range(1, 11), *range(31, 41)):
            send_steps(ranks, step, step, metrics={"accuracy": step / 100}, lr=(0.2, 0.1))
            if step % 10 == 0:
                validate(ranks, step, loss=2.5, accuracy=step / 200)
        page.goto(f"{daemon.url}?job={job}")
        accuracy = trace(page, "metric-accuracy-chart", "current", 21)
        assert accuracy["x"] == [*range(1, 11), None, *range(31, 41)], "no line where nothing was reported"
        assert trace(page, "loss-chart", "current", 21)["x"][10] is None
        expect(page.locator("#legend")).to_contain_text("no reports of 20 steps")
        assert trace(page, "loss-chart", "validation loss, current")["x"] == [10, None, 40]
        assert trace(page, "metric-accuracy-chart", "accuracy, validation, current")["y"] == [0.05, None, 0.2]
        assert trace(page, "lr-chart", "group no_decay", 21)["y"][0] == 0.1
        assert trace(page, "norm-chart", "group decay", 21)["y"][0] == pytest.approx((0.1**2 + 0.3**2) ** 0.5)
        expect(page.locator("#lr-legend")).to_have_text("decayno_decay")
        expect(page.locator("#events-list li")).to_have_count(2)

        send_steps(ranks, 41, 41, metrics={"accuracy": 0.9}, lr=(0.2, 0.1))
        validate(ranks, 41, loss=2.25)
        assert trace(page, "metric-accuracy-chart", "current", 22)["y"][-1] == pytest.approx(0.9)
        assert trace(page, "loss-chart", "validation loss, current", 4)["y"][-1] == 2.25
        expect(page.locator("#events-list li")).to_have_count(3)


def test_a_step_is_on_the_page_within_300_ms_of_its_last_report(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 20)
        page.goto(f"{daemon.url}?job={job}")
        trace(page, "loss-chart", "current", 20)
        page.wait_for_timeout(1500)
        seconds = []
        for step in range(21, 32):
            began = time.time()
            send_steps(ranks, step, step)
            shown = page.wait_for_function(
                """(step) => document.getElementById("loss-chart").data
                  .find(({ name }) => name === "current")?.x.at(-1) === step
                  && performance.timeOrigin + performance.now()""",
                arg=step,
            )
            seconds.append(shown.json_value() / 1000 - began)
            page.wait_for_timeout(400)
        assert sorted(seconds)[len(seconds) // 2] < 0.3, seconds


@pytest.mark.long
def test_a_spike_of_one_step_is_a_stroke_in_the_overview_of_a_long_run(tmp_path: Path, page: Page) -> None:
    write_long_run(tmp_path, SPIKE + 2000, 1)
    with running_daemon(tmp_path) as daemon:
        page.goto(f"{daemon.url}?job={JOB}")
        found = trace(page, "loss-chart", "spikes", 2)
        assert max(value for value in found["y"] if value is not None) > 10.0
        place = max(range(len(found["y"])), key=lambda at: found["y"][at] or 0.0)
        assert found["x"][place] == pytest.approx(SPIKE, abs=60)
        assert "in one of" in found["text"][place]
        page.goto("about:blank")  # before its daemon ends


def test_axes_and_a_link_to_a_view(
    daemon: DaemonProcess, browser_context: BrowserContext, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job}) as ranks:
        send_steps(ranks, 1, 100, num_tokens=1000)
        page.goto(f"{daemon.url}?job={job}")
        trace(page, "loss-chart", "current", 100)
        page.get_by_label("Axis of the curves").select_option("tokens")
        page.wait_for_function(f"() => ({TRACE})(['loss-chart', 'current']).x.at(-1) === 100000")
        page.locator("#loss-chart").focus()
        for key in ("+", "+", "ArrowLeft"):
            page.keyboard.press(key)
        page.wait_for_function(f"() => {{ const [low, high] = ({RANGE})(); return high - low < 30000; }}")
        low, high = page.evaluate(RANGE)
        assert high - low == pytest.approx(26_000, rel=0.1)

        other = browser_context.new_page()
        other.goto(page.url)
        trace(other, "loss-chart", "current", 100)
        other.wait_for_function(f"() => ({RANGE})()?.[0] > 1000")
        assert other.evaluate(RANGE) == pytest.approx([low, high])
        expect(other.get_by_label("Axis of the curves")).to_have_value("tokens")
        other.get_by_label("Axis of the curves").select_option("time")
        other.wait_for_function(f"() => ({TRACE})(['loss-chart', 'current']).x.at(-1) === 99")
        first, last = other.evaluate(RANGE)
        assert [first, last] == pytest.approx([low / 1000 - 1, high / 1000 - 1], abs=3), "the same steps stay in sight"
        other.close()


def test_a_validation_of_each_ranks_own_data_is_listed_once_with_the_mean(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 10)
        for loss, rank in zip((1.0, 2.0), ranks, strict=True):
            rank.send(
                Event(attempt=0, step=10, time=1010.0, kind="validation", fields={"loss": loss, "set": "held out"})
            )
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator("#events-list li")).to_have_count(1)
        expect(page.locator("#events-list li")).to_contain_text("loss 1.500 · set held out · mean of 2 ranks")


def test_a_step_that_takes_far_longer_than_all_others_does_not_flatten_them(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job}) as (rank,):
        for step in range(1, 101):
            total = 9.0 if step == 1 else 0.1
            phases = Phases(total=total, data=0.01, forward=0.03, backward=0.05, optimizer=0.01)
            rank.send(a_report(step, phases=phases))
        page.goto(f"{daemon.url}?job={job}")
        page.wait_for_function("() => document.getElementById('phase-chart').data?.at(-1).x.includes(100)")
        assert page.evaluate("() => document.getElementById('phase-chart').layout.yaxis.range[1]") < 0.4 * 1000
        expect(page.locator("#phase-note")).to_contain_text("1 point above the chart, at most 9.0\u202fs.")


def save(page: Page, name: str, kind: str, directory: Path) -> Path:
    """Saves a chart or a map as its reader does; the file."""
    button = page.get_by_label(f"Save {name}", exact=True)
    button.press("Enter")
    with page.expect_download() as download:
        button.locator("xpath=..").get_by_role("button", name=kind).press("Enter")
    path = directory / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_a_chart_is_saved_as_numbers_and_as_a_picture(
    daemon: DaemonProcess, page: Page, job: str, tmp_path: Path
) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job}) as ranks:
        send_steps(ranks, 1, 30, metrics={"=cmd": 1.0, "x": 2.0})
        page.goto(f"{daemon.url}?job={job}")
        trace(page, "metric-x-chart", "current", 30)
        expect(page.locator("#charts .export")).to_have_count(7)
        saved = {kind: save(page, "loss", kind, tmp_path) for kind in ("CSV", "PNG")}
        rows = list(csv.DictReader(io.StringIO(saved["CSV"].read_text())))
        assert [int(row["step"]) for row in rows] == list(range(1, 31))
        assert {"attempt", "first_step", "time", "loss", "loss_min", "loss_max"} <= rows[0].keys()
        assert saved["PNG"].read_bytes().startswith(b"\x89PNG")
        assert saved["PNG"].name.endswith("_loss.png")


def test_the_maps_of_layers_and_ranks_are_saved_too(
    daemon: DaemonProcess, page: Page, job: str, tmp_path: Path
) -> None:
    with simulated_ranks(daemon.endpoint, 80, {"job": job}, per_host=8) as ranks:
        for step in (10, 20, 30):
            for rank in ranks:
                norms = np.array([0.5, 0.25, math.nan if step == 30 else 0.125, 2.0], dtype=np.float32)
                rank.send(a_report(step, is_sampled=True, sample_every=10, arrays={"grad_norm": norms}))
        page.goto(f"{daemon.url}?job={job}")
        page.wait_for_function("() => document.getElementById('layer-map').data?.[0].z[0]?.length === 3")
        header, *layers = csv.reader(io.StringIO(save(page, "layers", "CSV", tmp_path).read_text()))
        assert header == ["layer", "kind", "statistic", "step 10", "step 20", "step 30"]
        assert layers[2][2:] == ["grad_norm", "0.125", "0.125", "NaN"]
        assert save(page, "layers", "PNG", tmp_path).read_bytes().startswith(b"\x89PNG")
        saved = list(csv.DictReader(io.StringIO(save(page, "ranks", "CSV", tmp_path).read_text())))
        assert [(row["rank"], row["host"], row["step"]) for row in saved][-1] == ("79", "node9", "30")
        assert len(saved) == 80
        assert save(page, "ranks", "PNG", tmp_path).read_bytes().startswith(b"\x89PNG")


def test_another_run_is_overlaid_and_stays_in_the_link(daemon: DaemonProcess, page: Page, job: str) -> None:
    first, second = f"{job}_a", f"{job}_b:2"
    with (
        simulated_ranks(daemon.endpoint, 1, {"job": first}) as ranks,
        simulated_ranks(daemon.endpoint, 1, {"job": second}) as others,
    ):
        send_steps(ranks, 1, 20, metrics={"x": 1.0}, num_tokens=10)
        send_steps(others, 1, 30, metrics={"x": 3.0}, loss=4.0)
        page.goto(f"{daemon.url}?job={first}")
        trace(page, "loss-chart", "current", 20)
        page.locator("#compare summary").press("Enter")
        page.locator("#compare-filter").fill("_b")
        page.locator("#compare-list").get_by_label(second, exact=True).check()
        assert trace(page, "loss-chart", f"run {second}", 30)["y"] == [4.0] * 30
        assert trace(page, "metric-x-chart", f"run {second}", 30)["y"] == [3.0] * 30
        assert page.evaluate("() => document.getElementById('loss-chart').layout.yaxis.range[1]") > 4.0
        expect(page.locator("#legend")).to_contain_text(second)
        page.reload()
        trace(page, "loss-chart", f"run {second}", 30)
        page.get_by_label("Axis of the curves").select_option("tokens")
        page.wait_for_function(f"() => ({TRACE})(['loss-chart', 'current']).x.at(-1) === 200")
        assert page.evaluate(TRACE, ["loss-chart", f"run {second}"]) is None, "a run without tokens has no place there"
        expect(page.locator("#compare-note")).to_have_text(f"{second} reports no tokens.")
        expect(page.locator("#compare-note")).to_be_visible()
        for width in (390, 2560):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function("(width) => document.documentElement.scrollWidth === width", arg=width)
        page.set_viewport_size({"width": 1400, "height": 900})
