"""All jobs on one page: the worst first, live, with the keyboard, and as cards on a phone."""

import math
import re

import pytest
from playwright.sync_api import Locator, Page, expect

from caboose_wire import Bye
from support.processes import DaemonProcess, wait_until
from support.ranks import send_steps, simulated_ranks

pytestmark = pytest.mark.slow


def row(page: Page, job: str) -> Locator:
    return page.locator(f'.job-row[data-key="{job}"]')


def test_two_jobs_are_shown_side_by_side_the_worst_first_and_live(lonely_daemon: DaemonProcess, page: Page) -> None:
    with (
        simulated_ranks(lonely_daemon.endpoint, 2, {"job": "calm"}) as calm,
        simulated_ranks(lonely_daemon.endpoint, 2, {"job": "wild"}) as wild,
    ):
        send_steps(wild, 1, 30)
        send_steps(calm, 1, 30)
        assert wait_until(lambda: len(lonely_daemon.get("/api/v1/jobs")["jobs"]) == 2, 10)
        page.goto(lonely_daemon.url)
        expect(page.get_by_role("heading", level=1)).to_contain_text("Jobs 2 jobs: 2 running")
        expect(row(page, "calm")).to_contain_text("nothing wrong")
        expect(row(page, "calm").locator(".of-ranks")).to_have_text("2 of 2")
        expect(row(page, "calm").locator(".of-step")).to_have_text("30")
        expect(row(page, "calm").locator(".sparkline path")).to_have_attribute("d", re.compile(r"^M.*L"))
        send_steps(wild, 31, 32, loss=math.nan)
        first = page.locator(".job-row").first
        expect(first).to_contain_text("wild")
        expect(first).to_have_attribute("data-kind", "critical")
        expect(first.locator(".of-health")).to_contain_text("criticalnon_finite")
        expect(first.locator(".of-loss b")).to_have_text("NaN")
        expect(page).to_have_title("✖ 2 jobs · Caboose")
        send_steps(calm, 31, 40, loss=1.5)
        expect(row(page, "calm").locator(".of-loss b")).to_have_text("1.500")
        calm[1].send(Bye(step=40, error="out of memory"))
        expect(row(page, "calm").locator(".words")).to_contain_text("crashed")
        row(page, "calm").get_by_role("link").click()
        expect(page).to_have_url(re.compile(r"\?job=calm$"))
        expect(page.locator("#headline-title")).to_contain_text("Critical")
        page.locator(".brand").click()
        expect(page.locator(".job-row")).to_have_count(2)


def test_jobs_are_found_and_opened_with_the_keyboard(daemon: DaemonProcess, page: Page, job: str) -> None:
    names = [f"{job}-{letter}" for letter in "abc"]
    for name in names:
        with simulated_ranks(daemon.endpoint, 1, {"job": name}) as ranks:
            send_steps(ranks, 1, 3)
    page.goto(f"{daemon.url}?jobs")
    expect(row(page, names[2])).to_be_visible()
    page.keyboard.press("/")
    expect(page.locator("#jobs-filter")).to_be_focused()
    page.keyboard.type(f"{job}-")
    expect(page.locator(".job-row")).to_have_count(3)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(row(page, names[1]).get_by_role("link")).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(row(page, names[0]).get_by_role("link")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"\?job={names[0]}$"))
    page.goto(f"{daemon.url}?jobs")
    expect(row(page, names[0])).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("nothing like this")
    expect(page.locator("#jobs-none")).to_have_text("No job matches “nothing like this”.")


def test_on_a_phone_each_job_is_a_card(daemon: DaemonProcess, page: Page, job: str) -> None:
    name = f"{job}-with-a-rather-long-name" * 2
    with simulated_ranks(daemon.endpoint, 2, {"job": name}) as ranks:
        send_steps(ranks, 1, 3)
        for width in (360, 3840):
            page.set_viewport_size({"width": width, "height": 740})
            page.goto(f"{daemon.url}?jobs")
            expect(row(page, name)).to_contain_text("nothing wrong")
            assert page.evaluate("document.documentElement.scrollWidth") == width
