"""The live page in a real browser, fed by a real daemon and simulated ranks."""

import math
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import numpy as np
import pytest
from playwright.sync_api import Page, expect

from caboose_wire import Bye, Event, Layer
from support.browser import Watched
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import send_spike, send_steps, simulated_ranks

pytestmark = pytest.mark.slow

MARKUP = "<img src=x onerror=hacked=1>"
LINES = "id => (document.getElementById(id).data ?? []).filter(t => t.mode === 'lines' && !t.fill).map(t => t.x)"


def tile(page: Page, name: str) -> Any:
    return page.locator("#tiles > div").filter(has=page.get_by_text(name, exact=True)).locator(".value")


def drawn_steps(page: Page, chart: str = "loss-chart") -> list[int]:
    """The steps of the chart's lines, as the chart has them."""
    return [step for line in page.evaluate(LINES, chart) for step in line if step is not None]


def wait_for_drawn_step(page: Page, step: int) -> None:
    page.wait_for_function(
        "step => (document.getElementById('loss-chart').data ?? []).some(t => !t.fill && t.x.includes(step))", arg=step
    )


def test_the_loss_advances_while_one_looks_at_it(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 30)
        page.goto(f"{daemon.url}?job={job}")
        expect(tile(page, "Step")).to_have_text("30")
        wait_for_drawn_step(page, 30)
        assert drawn_steps(page)[:3] == [1, 2, 3]
        send_steps(ranks, 31, 45, loss=1.5)
        expect(tile(page, "Step")).to_have_text("45")
        expect(tile(page, "Loss")).to_have_text("1.500")
        wait_for_drawn_step(page, 45)
        assert drawn_steps(page) == list(range(1, 46))
        assert drawn_steps(page, "lr-chart") == list(range(1, 46))
        expect(page.locator("#headline-title")).to_have_text("Nothing wrong now")
        expect(page).to_have_title(f"{job} · step 45 · Caboose")


def test_every_rank_has_a_row_and_one_never_heard_of_is_not_left_out(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 3, {"job": job}) as ranks:
        send_steps(ranks, 1, 3)
        ranks[2].send(Bye(step=3, error="CUDA out of memory"))
        page.goto(f"{daemon.url}?job={job}")
        rows = page.locator("#rank-table tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.nth(0)).to_contain_text("node0")
        expect(rows.nth(1)).to_contain_text("node1")
        expect(rows.nth(1).locator("td").nth(3)).to_have_text("2.103")
        expect(rows.nth(2)).to_contain_text("failed")
        expect(rows.nth(2)).to_contain_text("CUDA out of memory")
        expect(page.locator("#headline-title")).to_have_text("Critical: Crashed at step 3")
        for simulated in ranks[:2]:
            rank = simulated.hello.rank
            simulated.send(msgspec.structs.replace(simulated.hello, job="late", incarnation=f"late-{rank:04}"))
        page.goto(f"{daemon.url}?job=late")
        expect(rows.nth(2)).to_contain_text("no report yet")
        expect(page.locator("#headline-title")).to_have_text("Waiting for 1 rank")


def test_a_nan_is_seen_live_and_after_loading_again(daemon: DaemonProcess, page: Page, job: str) -> None:
    marks = "document.getElementById('loss-chart').data.filter(t => t.marker?.symbol === 'x').flatMap(t => t.x)"
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 10)
        page.goto(f"{daemon.url}?job={job}")
        wait_for_drawn_step(page, 10)
        send_steps(ranks[:1], 11, 11)
        send_steps(ranks[1:], 11, 11, loss=math.nan)
        expect(tile(page, "Loss")).to_have_text("NaN")
        expect(page.locator("#rank-table tbody tr").nth(1)).to_contain_text("NaN")
        expect(page.locator("#headline-title")).to_contain_text("non_finite since step 11")
        expect(page.locator(".incident .where")).to_contain_text("rank 1 on node1 · forward phase")
        send_steps(ranks, 12, 12, loss=math.inf)
        send_steps(ranks, 13, 14)
        wait_for_drawn_step(page, 14)
        assert page.evaluate(marks) == [11, 12]
        assert 11 not in drawn_steps(page)
        page.reload()
        wait_for_drawn_step(page, 14)
        assert page.evaluate(marks) == [11, 12]
        expect(page.locator("#legend")).to_contain_text("2 steps with NaN or infinity")
        expect(tile(page, "Non-finite")).to_have_text("2")
        expect(tile(page, "Non-finite").locator("+ .more")).to_have_text("of 14 steps")


def test_a_number_and_its_per_cent_sign_stay_together_but_not_in_code(daemon: DaemonProcess, page: Page) -> None:
    page.goto(f"{daemon.url}?job=nobody")

    shown = page.evaluate(
        """async () => {
          const { setProse } = await import("/static/dom.js");
          const place = document.createElement("p");
          setProse(place, "100 % in one step: `5 % 3`");
          return place.textContent;
        }"""
    )

    assert shown == "100\N{NO-BREAK SPACE}% in one step: 5 % 3"


def test_a_new_attempt_has_a_line_of_its_own_over_the_same_steps(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 20)
        page.goto(f"{daemon.url}?job={job}")
        wait_for_drawn_step(page, 20)
        for simulated in ranks:
            rank = simulated.hello.rank
            simulated.send(msgspec.structs.replace(simulated.hello, attempt=1, incarnation=f"restarted-{rank}"))
        send_steps(ranks, 11, 25, attempt=1, loss=1.0)
        wait_for_drawn_step(page, 25)
        lines = page.evaluate(LINES, "loss-chart")
        assert [[step for step in line if step is not None] for line in lines] == [
            list(range(1, 21)),
            list(range(11, 26)),
        ]
        expect(page.locator("#loss-chart")).to_contain_text("attempt 2")
        expect(page.locator("#legend")).to_contain_text("earlier attempts")
        expect(page.locator("#facts")).to_contain_text("Attempt2")


def test_a_job_nobody_knows_is_named_with_those_that_are_known(daemon: DaemonProcess, page: Page) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": "train"}) as ranks:
        send_steps(ranks, 1, 3)
        page.goto(f"{daemon.url}?job=tarin")
        expect(page.get_by_role("heading", level=1)).to_have_text("Unknown job “tarin”")
        page.locator("#message").get_by_role("link", name="train running").click()
        expect(tile(page, "Step")).to_have_text("3")


def test_a_daemon_without_jobs_says_how_to_attach_and_then_shows_the_first(
    lonely_daemon: DaemonProcess, page: Page
) -> None:
    page.goto(lonely_daemon.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("No job has reported yet")
    expect(page.locator("#message")).to_contain_text("caboose.attach(model, optimizer)")
    with simulated_ranks(lonely_daemon.endpoint, 2) as ranks:
        send_steps(ranks, 1, 5)
        expect(tile(page, "Step")).to_have_text("5")


@pytest.mark.long
@pytest.mark.slow
def test_a_restarted_daemon_is_found_again_with_its_history(lonely_daemon: DaemonProcess, watched: Watched) -> None:
    page = watched.page
    watched.may_lose_connection = True
    with simulated_ranks(lonely_daemon.endpoint, 2) as ranks:
        send_steps(ranks, 1, 30)
        page.goto(lonely_daemon.url)
        wait_for_drawn_step(page, 30)
        lonely_daemon.kill()
        expect(page.locator("#lost")).to_contain_text("Connection to the daemon lost, retrying. Data shown is from")
        expect(page.locator("#connection")).to_have_text("not connected")
        http = urlsplit(lonely_daemon.url).netloc
        with running_daemon(lonely_daemon.data_dir.parent, listen=lonely_daemon.endpoint, http=http):
            expect(page.locator("#lost")).to_be_hidden()
            expect(page.locator("#headline-title")).to_have_text("No report since the daemon restarted")
            for simulated in ranks:
                simulated.send(simulated.hello)
            send_steps(ranks, 31, 40)
            expect(tile(page, "Step")).to_have_text("40")
            wait_for_drawn_step(page, 40)
            assert drawn_steps(page) == list(range(1, 41))


@pytest.mark.long
def test_the_browser_keeps_a_bounded_number_of_points(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job}) as ranks:
        send_steps(ranks, 1, 10)
        page.goto(f"{daemon.url}?job={job}")
        wait_for_drawn_step(page, 10)
        send_steps(ranks, 11, 6000)
        expect(tile(page, "Step")).to_have_text("6\u202f000", timeout=90_000)
        wait_for_drawn_step(page, 6000)
        assert wait_until(lambda: len(drawn_steps(page)) <= 4000, 15), "a thinned curve was loaded"
        steps = drawn_steps(page)
        assert steps == sorted(steps)
        assert max(np.diff(steps)) <= 6  # thinned, nothing left out


def test_text_from_the_network_stays_text(daemon: DaemonProcess, page: Page, job: str) -> None:
    layers = tuple(Layer(name=f"{MARKUP}.{i}", numel=1) for i in range(4))
    hello = {"job": job, "layers": layers, "host": MARKUP, "blind": {MARKUP: MARKUP}, "config": {MARKUP: MARKUP}}
    nan = np.array([0.1, 0.1, math.nan, 0.1], dtype=np.float32)
    with simulated_ranks(daemon.endpoint, 2, hello) as ranks:
        send_steps(ranks, 1, 5)
        send_steps(ranks, 6, 7, arrays={"grad_norm": nan})
        ranks[0].send(Event(attempt=0, step=7, time=1.0, kind=MARKUP, fields={MARKUP: MARKUP}))
        ranks[1].send(Bye(step=7, error=MARKUP))
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator(".incident .where").first).to_contain_text(MARKUP)
        for panel in ("#rank-table", "#sight-list", "#events-list"):
            expect(page.locator(panel)).to_contain_text(MARKUP)
        page.locator(".run summary").click()
        expect(page.locator("#run-list")).to_contain_text(MARKUP)
        page.goto(f"{daemon.url}?job={quote(MARKUP + '?')}")
        expect(page.get_by_role("heading", level=1)).to_contain_text(MARKUP)
        assert page.locator("img").count() == 0
        assert page.evaluate("typeof hacked") == "undefined"


def test_a_norm_that_is_taken_every_fourth_step_is_still_one_line(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        for step in range(1, 42):
            nothing = {} if step % 4 == 1 else {"arrays": {}}
            send_steps(ranks, step, step, **nothing)
        page.goto(f"{daemon.url}?job={job}")
        page.wait_for_function("() => document.getElementById('norm-chart').data?.some(trace => trace.x?.length > 8)")
        drawn = page.evaluate("document.getElementById('norm-chart').data.map(trace => trace.x)")
        assert list(range(1, 42, 4)) in drawn, "one line, with no gap between neighbours"


def test_the_log_scale_is_switched_from_the_keyboard_and_remembered(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    has_scale = "type => document.getElementById('loss-chart').layout?.yaxis.type === type"
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 5)
        page.goto(f"{daemon.url}?job={job}")
        page.wait_for_function(has_scale, arg="linear")
        page.locator("#log-toggle").focus()
        page.keyboard.press("Enter")
        page.wait_for_function(has_scale, arg="log")
        page.reload()
        page.wait_for_function(has_scale, arg="log")


def test_a_phone_shows_it_all_without_scrolling_sideways(daemon: DaemonProcess, page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    job = "a-job-with-a-rather-long-name-" * 3
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 40)
        send_spike(ranks, 41)
        send_spike(ranks, 42)
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator("#headline-title")).to_contain_text("Critical: ")
        wait_for_drawn_step(page, 42)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        incident, chart = page.locator(".incident").first.bounding_box(), page.locator("#loss-chart").bounding_box()
        assert incident is not None
        assert chart is not None
        assert incident["y"] < chart["y"]
