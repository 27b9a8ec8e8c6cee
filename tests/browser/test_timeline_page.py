"""The incidents over the run: bars that lead to their cards, by mouse, by keyboard and by address."""

import math
from collections.abc import Iterator

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from support.processes import DaemonProcess, wait_until
from support.ranks import SimulatedRank, send_spike, send_steps, simulated_ranks

pytestmark = pytest.mark.slow

LAST = 502


def bar(page: Page, number: int) -> Locator:
    return page.locator(f'.bar-mark[data-key="{number}"]')


def card(page: Page, number: int) -> Locator:
    return page.locator(f'.incident[data-key="{number}"]')


@pytest.fixture(scope="module")
def story(daemon: DaemonProcess) -> Iterator[str]:
    """A job with a spike that healed, and one that did not: two incidents."""
    job = "a-story-of-two-incidents"
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_story(daemon, ranks, job)
        yield job


def send_story(daemon: DaemonProcess, ranks: list[SimulatedRank], job: str) -> None:
    send_steps(ranks, 1, 40)
    for step in (41, 42):
        send_spike(ranks, step)
    for place in range(5):
        send_steps(ranks, 43 + place, 43 + place, loss=2.0 + 5.0 * math.exp(-(place + 1) / 4))
    send_steps(ranks, 48, 499)
    for step in (500, 501, LAST):
        send_spike(ranks, step)
    assert wait_until(lambda: daemon.step(job) == LAST, 10)


def test_bars_lie_where_the_incidents_were_and_lead_to_their_cards(
    daemon: DaemonProcess, page: Page, story: str
) -> None:
    told = {i["number"]: i for i in daemon.get(f"/api/v1/jobs/{story}/incidents")["incidents"]}
    assert [(i["onset_step"], i["is_open"]) for _, i in sorted(told.items())] == [(41, False), (500, True)]
    page.goto(f"{daemon.url}?job={story}")
    page.wait_for_function("() => document.getElementById('loss-chart').data")  # the bars lie within all steps
    expect(page.locator(".bar-mark")).to_have_count(2)
    expect(bar(page, 1)).to_have_attribute("data-open", "false")
    expect(bar(page, 2)).to_have_attribute("data-open", "true")
    expect(bar(page, 2).locator(".glyph")).to_have_attribute("data-kind", told[2]["severity"])
    field, mark = page.locator(".lane-bars").first.bounding_box(), bar(page, 1).bounding_box()
    assert field is not None
    assert mark is not None
    assert (mark["x"] + 7 - field["x"]) / field["width"] == pytest.approx(40 / (LAST - 1), abs=0.02)
    assert (mark["width"] - 14) / field["width"] == pytest.approx((told[1]["closed_step"] - 41) / (LAST - 1), abs=0.02)
    expect(card(page, 1).locator(".why")).not_to_have_attribute("open", "")
    bar(page, 1).click()
    expect(card(page, 1)).to_be_focused()
    expect(card(page, 1).locator(".why")).to_have_attribute("open", "")
    expect(card(page, 1)).to_be_in_viewport()
    assert page.url.endswith("#incident=1")


def test_an_address_leads_to_an_incident_and_says_when_there_is_none(
    daemon: DaemonProcess, page: Page, story: str
) -> None:
    page.goto(f"{daemon.url}?job={story}#incident=1")
    expect(card(page, 1)).to_have_attribute("data-chosen", "true")
    expect(card(page, 1)).to_be_in_viewport()
    page.evaluate("location.hash = 'incident=2'")
    expect(card(page, 2)).to_be_focused()
    expect(card(page, 1)).to_have_attribute("data-chosen", "false")
    page.evaluate("location.hash = 'incident=99'")
    expect(page.locator("#incident-missing")).to_have_text(f"Incident {story}/99 does not exist or was deleted.")
    page.evaluate("location.hash = 'incident=<img>'")
    expect(card(page, 2)).to_be_visible()


def test_the_keyboard_goes_from_incident_to_incident(daemon: DaemonProcess, page: Page, story: str) -> None:
    page.goto(f"{daemon.url}?job={story}")
    expect(page.locator('.bar-mark[tabindex="0"]')).to_have_count(1)
    bar(page, 2).focus()
    expect(page.locator("#timeline-shown")).to_contain_text("from step 500 open, detected at 500")
    page.keyboard.press("ArrowLeft")
    expect(bar(page, 1)).to_be_focused()
    expect(page.locator("#timeline-shown")).to_contain_text("#1 ")
    page.keyboard.press("End")
    expect(bar(page, 2)).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(card(page, 1)).to_be_focused()


def test_attempts_follow_each_other_instead_of_lying_on_top_of_each_other(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 40)
        for step in (41, 42, 43):
            send_spike(ranks, step)
        send_steps(ranks, 44, 60)
        for simulated in ranks:
            name = f"restarted-{simulated.hello.rank}-{job}"[:64]
            simulated.send(msgspec.structs.replace(simulated.hello, attempt=1, incarnation=name))
        send_steps(ranks, 11, 90, attempt=1)
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator("#facts")).to_contain_text("Attempt2")
        expect(page.locator("#timeline-axis span")).to_have_text(["1", "attempt 2: 11", "90"])
        expect(page.locator(".attempt-mark")).to_have_count(1)

        field, mark = page.locator(".lane-bars").first.bounding_box(), bar(page, 1).bounding_box()

        assert field is not None
        assert mark is not None
        total = 60 + 80 - 1
        assert (mark["x"] + 7 - field["x"]) / field["width"] == pytest.approx(40 / total, abs=0.02)
        assert mark["x"] + mark["width"] - 7 <= field["x"] + field["width"] * 60 / total + 2, (
            "it ended with its attempt"
        )


@pytest.mark.long
def test_what_is_in_hand_is_marked_with_its_reason_and_how_to_take_it_is_shown(
    daemon: DaemonProcess, page: Page, story: str
) -> None:
    page.goto(f"{daemon.url}?job={story}#incident=2")
    card(page, 2).locator(".ack summary").click()
    line = card(page, 2).locator(".ack code")
    expect(line).to_have_text(f'caboose ack {story}/2 --reason "..."')
    expect(bar(page, 2).locator(".bar-hand")).to_be_hidden()
    expect(card(page, 1).locator(".ack")).to_be_hidden()
    status, _ = daemon.post(f"/api/v1/jobs/{story}/incidents/2/ack", {"reason": "bad shard", "by": "ada"})
    assert status == 200
    expect(card(page, 2).locator(".outcome")).to_contain_text("acknowledged: ada")
    expect(card(page, 2).locator(".outcome")).to_contain_text("bad shard")
    expect(bar(page, 2).locator(".bar-hand")).to_be_visible()
    expect(line).to_have_text(f"caboose ack {story}/2 --undo")
    expect(page.locator("#timeline-keys")).to_contain_text("acknowledged")
