"""Tabs that nobody looks at give their stream back, so that any number of them can be open at once."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from support.browser import Watched
from support.processes import DaemonProcess
from support.ranks import send_steps, simulated_ranks

pytestmark = pytest.mark.slow

CONNECTIONS = 6
"""That a browser makes to one host, for all of its tabs together."""
SIGHT = """isHidden => {
  Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""A headless browser shows every tab, so a hidden one is made to think so."""

SLEEP_SECONDS = 12.0
"""Longer than the silence after which the page connects again."""
MISSING = """() => {
  const seen = new Set(document.getElementById("loss-chart").data.flatMap((trace) => trace.x));
  const last = Math.max(...[...seen].filter(Number.isFinite));
  return Array.from({ length: last }, (_, place) => place + 1).filter((step) => !seen.has(step));
}"""
"""The steps up to the last that no line has."""
DRAWN = "steps => document.getElementById('loss-chart').data?.some(t => steps.every(step => t.x.includes(step)))"


@contextlib.contextmanager
def a_tab(context: BrowserContext, url: str) -> Iterator[Page]:
    page = context.new_page()
    page.clock.install()
    page.goto(url)
    expect(page.locator("#connection")).to_have_text("connected")
    yield page
    page.close()


def leave(page: Page, seconds: int) -> None:
    """Somebody goes to another tab, and stays there."""
    page.evaluate(SIGHT, True)
    page.clock.fast_forward(seconds * 1000)


def test_a_seventh_tab_is_live_as_well_and_the_first_has_missed_nothing(
    daemon: DaemonProcess, browser_context: BrowserContext, job: str
) -> None:
    with contextlib.ExitStack() as tabs, simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 10)
        opened = []
        for _ in range(CONNECTIONS):
            opened.append(tabs.enter_context(a_tab(browser_context, f"{daemon.url}?job={job}")))
            leave(opened[-1], 15)
            expect(opened[-1].locator("#connection")).to_have_text("paused while hidden")
        seventh = tabs.enter_context(a_tab(browser_context, f"{daemon.url}?job={job}"))
        send_steps(ranks, 11, 30)
        expect(seventh.locator("#tiles")).to_contain_text("30")

        first = opened[0]
        first.evaluate(SIGHT, False)

        expect(first.locator("#connection")).to_have_text("connected")
        first.wait_for_function(DRAWN, arg=[1, 15, 30])


def test_a_short_look_elsewhere_keeps_the_stream(
    daemon: DaemonProcess, browser_context: BrowserContext, job: str
) -> None:
    with (
        simulated_ranks(daemon.endpoint, 1, {"job": job}) as ranks,
        a_tab(browser_context, f"{daemon.url}?job={job}") as page,
    ):
        leave(page, 5)
        send_steps(ranks, 1, 5)
        page.evaluate(SIGHT, False)
        page.clock.fast_forward(8000)

        expect(page.locator("#connection")).to_have_text("connected")
        expect(page.locator("#tiles")).to_contain_text("5")


def test_the_title_of_a_tab_without_a_stream_stays_true(
    daemon: DaemonProcess, browser_context: BrowserContext, job: str
) -> None:
    with (
        simulated_ranks(daemon.endpoint, 1, {"job": job}) as ranks,
        a_tab(browser_context, f"{daemon.url}?job={job}") as page,
    ):
        send_steps(ranks, 1, 5)
        expect(page).to_have_title(f"{job} · step 5 · Caboose")
        leave(page, 15)
        expect(page.locator("#connection")).to_have_text("paused while hidden")
        send_steps(ranks, 6, 9)
        page.clock.fast_forward(25_000)

        expect(page).to_have_title(f"{job} · step 9 · Caboose")


@pytest.mark.long
def test_a_browser_that_slept_catches_up_without_a_gap(daemon: DaemonProcess, page: Page, job: str) -> None:
    """As a laptop whose lid was closed: no script runs, and the connection may be dead without a word."""
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 20)
        page.goto(f"{daemon.url}?job={job}")
        page.wait_for_function(DRAWN, arg=[1, 20])
        session = page.context.new_cdp_session(page)
        session.send("Page.setWebLifecycleState", {"state": "frozen"})
        for step in range(21, 2021):
            send_steps(ranks, step, step)
        time.sleep(SLEEP_SECONDS)
        session.send("Page.setWebLifecycleState", {"state": "active"})

        page.wait_for_function(DRAWN, arg=[20, 21, 1000, 2020])
        assert page.evaluate(MISSING) == []
        send_steps(ranks, 2021, 2025)
        page.wait_for_function(DRAWN, arg=[2021, 2025])
        expect(page.locator("#connection")).to_have_text("connected")


@pytest.mark.long
def test_a_daemon_whose_machine_slept_is_reported_and_then_followed_again(
    lonely_daemon: DaemonProcess, watched: Watched
) -> None:
    """The connection stays open and nothing comes: only the silence shows it."""
    watched.may_lose_connection = True
    page = watched.page
    with simulated_ranks(lonely_daemon.endpoint, 2) as ranks:
        send_steps(ranks, 1, 20)
        page.goto(lonely_daemon.url)
        page.wait_for_function(DRAWN, arg=[1, 20])
        os.kill(lonely_daemon.process.pid, signal.SIGSTOP)
        try:
            send_steps(ranks, 21, 60)
            expect(page.locator("#connection")).to_have_text("not connected", timeout=30_000)
        finally:
            os.kill(lonely_daemon.process.pid, signal.SIGCONT)

        expect(page.locator("#connection")).to_have_text("connected", timeout=30_000)
        page.wait_for_function(DRAWN, arg=[21, 60])
        assert page.evaluate(MISSING) == []
