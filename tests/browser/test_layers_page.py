"""The layers on the live page: the map over time, the way to one layer, and honest words where nothing was seen."""

import math
import time
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from caboose_wire import Layer, Module
from support.processes import DaemonProcess, wait_until
from support.ranks import SimulatedRank, a_report, simulated_ranks

pytestmark = pytest.mark.slow

DRAWN = "num => document.getElementById('layer-map').data?.find(t => t.name === 'values').z[0]?.length === num"
TRACE = "name => document.getElementById('layer-map').data.find(t => t.name === name)"
MODULES = tuple(Module(name=f"blocks.{i}.act", kind="ReLU", num_units=8) for i in range(3))


def some_layers(num: int) -> tuple[Layer, ...]:
    return tuple(Layer(name=f"blocks.{i}.weight", numel=100 * (i + 1), kind="Linear") for i in range(num))


def send_sample(rank: SimulatedRank, step: int, num: int = 4, *, bad: int = -1, **arrays: Any) -> None:
    """A step that is looked at closely; the gradient of layer `bad` is not a number."""
    norms = np.linspace(0.1, 0.4, num, dtype=np.float32)
    if bad >= 0:
        norms[bad] = math.nan
    seen = {"grad_norm": norms, "weight_norm": np.full(num, 2.0, dtype=np.float32), **arrays}
    rank.send(a_report(step, is_sampled=True, sample_every=10, arrays=seen))


def test_the_map_grows_with_each_look_and_a_nan_is_no_ordinary_cell(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job, "modules": MODULES}) as (rank,):
        dead = np.array([0.0, 0.25, 0.75], dtype=np.float32)
        for step in (10, 20):
            send_sample(rank, step, activation_std=np.ones(3, dtype=np.float32), activation_dead=dead)
        page.goto(f"{daemon.url}?job={job}")
        page.wait_for_function(DRAWN, arg=2)
        expect(page.locator("#layers-hint")).to_have_text("gradient norm of 4 layers at 2 samples")
        assert page.evaluate(TRACE, "crosses")["x"] == []
        send_sample(rank, 30, bad=2)
        page.wait_for_function(DRAWN, arg=3)

        assert page.evaluate(TRACE, "values")["z"][2][2] is None
        cross = page.evaluate(TRACE, "crosses")
        assert (cross["x"], cross["y"]) == ([2], [2])
        expect(page.locator("#layer-legend")).to_contain_text("NaN or infinity in 1 cell")
        page.wait_for_function(
            "() => document.getElementById('layer-map').data.find(t => t.name === 'marked').y[0] === 2"
        )
        assert page.evaluate(TRACE, "onsets")["x"] == [2]
        page.locator("#layer-frame").hover(position=middle_of(page, row=2, column=2))
        expect(page.locator("#layer-tip")).to_contain_text("blocks.2.weight (Linear)step 30gradient norm NaN")

        page.get_by_role("button", name="Dead units").click()
        page.wait_for_function(
            "() => document.getElementById('layer-map').data.find(t => t.name === 'values').z.length === 3"
        )
        assert page.evaluate(TRACE, "values")["z"][2] == [0.75, 0.75, 0.75]
        expect(page.locator("#layer-legend")).to_contain_text("0\u202f% to 100\u202f%")
        page.get_by_role("button", name="Saturation").click()
        expect(page.locator("#layers-note")).to_have_text("Saturation cannot be shown: no tanh or sigmoid was sampled.")
        expect(page.locator("#layers-parts")).to_be_hidden()


def middle_of(page: Page, *, row: int, column: int) -> Any:
    """Where a cell is in the frame, by the margins and the ranges of the chart."""
    return page.evaluate(
        """([row, column]) => {
          const { clientWidth, clientHeight, layout: { margin, xaxis, yaxis } } = document.getElementById("layer-map");
          const at = ([low, high], value, length) => ((value - low) / (high - low)) * length;
          const x = margin.l + at(xaxis.range, column, clientWidth - margin.l - margin.r);
          return { x, y: clientHeight - margin.b - at(yaxis.range, row, clientHeight - margin.t - margin.b) };
        }""",
        [row, column],
    )


def test_a_click_opens_a_layer_that_the_address_keeps_and_escape_closes(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job}) as (rank,):
        for step in (10, 20, 30):
            send_sample(rank, step, bad=1 if step == 30 else -1)
        page.goto(f"{daemon.url}?job={job}")
        page.wait_for_function(DRAWN, arg=3)
        page.locator("#layer-frame").click(position=middle_of(page, row=1, column=0))

        expect(page.locator("#layer-name")).to_have_text("blocks.1.weight")
        expect(page.locator("#layer-name")).to_be_focused()
        expect(page).to_have_url(f"{daemon.url}?job={job}#layer=blocks.1.weight")
        expect(page.locator("#layer-facts")).to_contain_text("2 of 4")
        expect(page.locator("#layer-found")).to_contain_text("non_finite, warning")
        expect(page.locator("#layer-charts h4")).to_have_text(["Gradient norm now NaN", "Weight norm now 2.000"])
        send_sample(rank, 40)
        expect(page.locator("#layer-charts h4").first).to_have_text("Gradient norm now 0.2000")
        page.reload()
        expect(page.locator("#layer-charts h4")).to_have_count(2)
        expect(page.locator("#layer-name")).to_have_text("blocks.1.weight")
        page.get_by_role("button", name="Next layer").click()
        expect(page.locator("#layer-name")).to_have_text("blocks.2.weight")
        page.go_back()
        expect(page.locator("#layer-name")).to_have_text("blocks.1.weight")
        page.keyboard.press("Escape")
        expect(page.locator("#layer-detail")).to_be_hidden()
        expect(page).to_have_url(f"{daemon.url}?job={job}")
        page.evaluate("location.hash = '#layer=blocks.9.weight'")
        expect(page.locator("#layer-note")).to_contain_text("no layer of this model has that name")


def test_the_address_keeps_an_incident_beside_a_layer(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job}) as (rank,):
        for step in (10, 20, 30):
            send_sample(rank, step, bad=1 if step == 30 else -1)
        page.goto(f"{daemon.url}?job={job}#layer=blocks.1.weight")
        expect(page.locator("#layer-name")).to_have_text("blocks.1.weight")
        page.locator(".bar-mark").first.click()
        both = f"{daemon.url}?job={job}#layer=blocks.1.weight&incident=1"
        expect(page).to_have_url(both)
        expect(page.locator("#layer-name")).to_have_text("blocks.1.weight")

        page.goto("about:blank")
        page.goto(both)

        expect(page.locator('.incident[data-key="1"]')).to_have_attribute("data-chosen", "true")
        expect(page.locator("#layer-name")).to_have_text("blocks.1.weight")
        page.get_by_role("button", name="Next layer").click()
        expect(page).to_have_url(f"{daemon.url}?job={job}#layer=blocks.2.weight&incident=1")
        page.locator("#layer-close").click()
        expect(page).to_have_url(f"{daemon.url}?job={job}#incident=1")


def test_the_map_is_walked_and_a_layer_found_from_the_keyboard(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job}) as (rank,):
        for step in (10, 20, 30):
            send_sample(rank, step)
        page.goto(f"{daemon.url}?job={job}")
        page.wait_for_function(DRAWN, arg=3)
        page.locator("#layer-keep").evaluate("button => button.hidden = false")
        page.locator("#layer-keep").focus()
        page.keyboard.press("Tab")
        expect(page.locator("#layer-frame")).to_be_focused()
        for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowLeft"):
            page.keyboard.press(key)
        expect(page.locator("#layer-cursor")).to_have_text("blocks.1.weight (Linear), step 20, gradient norm 0.2000")
        expect(page.locator("#layer-cell")).to_be_visible()
        page.keyboard.press("Enter")
        expect(page.locator("#layer-name")).to_have_text("blocks.1.weight")
        page.keyboard.press("Escape")
        expect(page.locator("#layer-frame")).to_be_focused()
        page.locator("#layer-filter").fill("s.3")
        expect(page.locator("#layer-list li")).to_have_text(["blocks.3.weight"])
        page.keyboard.press("ArrowDown")
        expect(page.locator("#layer-list button")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#layer-name")).to_have_text("blocks.3.weight")
        page.locator("#layer-filter").fill("nothing")
        expect(page.locator("#layer-list-more")).to_have_text("No layer with that name.")


@pytest.mark.long
def test_two_thousand_layers_share_rows_and_each_can_still_be_found(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    with simulated_ranks(daemon.endpoint, 1, {"job": job, "layers": some_layers(2000)}) as (rank,):
        for sampled in range(1, 21):
            send_sample(rank, 10 * sampled, 2000, bad=1234 if sampled == 20 else -1)
        assert wait_until(lambda: daemon.step(job) == 200, 20)
        page.goto(f"{daemon.url}?job={job}")
        page.wait_for_function("() => document.getElementById('loss-chart').data")
        began = time.monotonic()
        page.wait_for_function("() => document.getElementById('layer-map').data")
        assert time.monotonic() - began < 10.0

        assert len(page.evaluate(TRACE, "values")["z"]) == 400
        assert page.evaluate(TRACE, "crosses")["y"] == [246]
        expect(page.locator("#layers-hint")).to_contain_text("up to 5 layers share a row, the largest is shown")
        page.wait_for_function(
            "() => document.getElementById('layer-map').data.find(t => t.name === 'marked').y[0] === 246"
        )
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        page.get_by_role("button", name="Show smallest").click()
        expect(page.locator("#layers-hint")).to_contain_text("the smallest is shown")
        page.locator("#layer-filter").fill("1777")
        page.keyboard.press("Enter")
        expect(page.locator("#layer-name")).to_have_text("blocks.1777.weight")
        expect(page.locator("#layer-charts h4")).to_have_count(2)
        assert page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.long
def test_before_the_first_look_it_says_so_and_what_never_will_be_seen_says_why(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    hello = {"job": job, "blind": {"activations": "inside a full-graph compile"}}
    with simulated_ranks(daemon.endpoint, 1, hello) as (rank,):
        rank.send(a_report(7, sample_every=100))
        page.goto(f"{daemon.url}?job={job}")
        note = page.locator("#layers-note")
        expect(note).to_have_text("No layers sampled yet. One is taken every 100 steps; the run is at step 7.")
        page.get_by_role("button", name="Dead units").click()
        expect(note).to_have_text("Not monitored: inside a full-graph compile.")
        send_sample(rank, 100)
        expect(note).to_have_text("Dead units cannot be shown: inside a full-graph compile.")
        page.get_by_role("button", name="Gradient", exact=True).click()
        page.wait_for_function(DRAWN, arg=1)
        expect(note).to_be_hidden()
