"""Incidents and their diagnosis on the live page: one card for one cause, kept true while one reads it."""

import math
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from caboose_wire import Bye, Event
from support.processes import DaemonProcess, wait_until
from support.ranks import SimulatedRank, send_spike, send_steps, simulated_ranks

pytestmark = pytest.mark.slow

MARKUP = "<img src=x onerror=hacked=1>"
MARKS = "() => document.getElementById('loss-chart').data?.find(trace => trace.name === 'incidents')?.x"


def send_nan(ranks: list[SimulatedRank], step: int, rank: int) -> None:
    """One rank's loss is NaN; on the next step, after the all-reduce, every rank's."""
    for simulated in ranks:
        send_steps([simulated], step, step, **({"loss": math.nan} if simulated.hello.rank == rank else {}))
    send_steps(ranks, step + 1, step + 1, loss=math.nan)


def send_recovery(ranks: list[SimulatedRank], first: int) -> None:
    """The loss falls back from a spike, over some steps."""
    for place in range(5):
        send_steps(ranks, first + place, first + place, loss=2.0 + 5.0 * math.exp(-(place + 1) / 4))


def only_incident(daemon: DaemonProcess, job: str, step: int = 0) -> Any:
    """The one incident of the job, as the API has it once this step has been judged."""
    assert wait_until(lambda: daemon.step(job) >= step, 10)
    (incident,) = daemon.get(f"/api/v1/jobs/{job}/incidents")["incidents"]
    return incident


def causes(card: Locator) -> Locator:
    return card.locator(".causes details")


def is_unfolded(details: Locator) -> bool:
    return details.get_attribute("open") is not None


def test_a_nan_on_one_of_eight_ranks_is_one_incident_with_its_diagnosis(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 8, {"job": job}) as ranks:
        send_steps(ranks, 1, 30)
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator("#incidents-none")).to_contain_text("No incident in 30 steps.")
        send_nan(ranks, 31, rank=5)

        card = page.locator(".incident")
        expect(card.locator(".severity")).to_have_text("critical")
        expect(card.locator(".incident-head .rule")).to_have_text("non_finite")
        expect(card.locator(".incident-id")).to_have_text(f"{job}/1")
        expect(card.locator(".badge")).to_have_text("open")
        place = "rank 5 on node5 · forward phase · in the step where the loss moved"
        expect(card.locator(".where b")).to_have_text(place)
        expect(card.locator(".when")).to_contain_text("onset step 31 · detected 31")
        expect(card.locator(".members li")).to_have_count(1)
        expect(page.locator("#incidents-none")).to_be_hidden()

        told = only_incident(daemon, job, step=32)["diagnosis"]
        expect(card.locator(".as-of")).to_have_text(f"as of step {told['step']}")
        first = told["causes"][0]
        expect(causes(card)).to_have_count(len(told["causes"]))
        assert card.locator(".causes .share-name").all_inner_texts() == [cause["title"] for cause in told["causes"]]
        assert [is_unfolded(cause) for cause in causes(card).all()] == [True, *[False] * (len(told["causes"]) - 1)]
        for text in (*first["for"], *first["against"], first["first_fix"], first["avoid"], first["verify"]):
            expect(causes(card).first).to_contain_text(text)
        expect(causes(card).first.locator("pre code")).to_have_text(first["code"])
        for line in told["missing"]:
            expect(card.locator(".missing")).to_contain_text(line.replace("`", ""))
        expect(page.locator("#headline-detail")).to_contain_text(f"likely cause: {first['title']}")
        expect(card.locator(".hunts")).to_be_hidden()
        with page.expect_popup() as opened:
            card.get_by_role("link", name="Runbook").click()
        expect(opened.value.locator("h1")).to_have_text("CabooseNonFinite")
        opened.value.close()

        found = "rank 5, step 31: input of batch 30 holds NaN or infinity, in sample 3 of 16"
        fields = {"where": "input", "summary": found, "samples": "3", "batch": 30, "batch_step": 31, "rank": 5}
        ranks[5].send(Event(attempt=0, step=32, time=1032.5, kind="hunt", fields=fields))
        expect(card.locator(".hunts li")).to_have_text(found)
        expect(causes(card).first).to_contain_text("inspect sample 3 of batch 30 of rank 5")


@pytest.mark.long
@pytest.mark.slow
def test_what_is_believed_and_what_is_unknown_add_up(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 30)
        send_nan(ranks, 31, rank=1)
        page.goto(f"{daemon.url}?job={job}")

        told = only_incident(daemon, job, step=32)["diagnosis"]
        expect(page.locator(".as-of")).to_have_text(f"as of step {told['step']}")
        expect(page.locator(".incident .rest .share-name")).to_have_text("unknown")
        numbers = page.locator(".incident .share-number").all_inner_texts()
        shares = [*(cause["confidence"] for cause in told["causes"]), told["unknown"]]
        assert [int(number.removesuffix("\u202f%")) for number in numbers] == [round(100 * share) for share in shares]
        assert sum(shares) == pytest.approx(1.0, abs=0.001)
        bar = page.locator(".causes .share-bar").first.bounding_box()
        fill = page.locator(".causes .share-bar i").first.bounding_box()
        assert bar is not None
        assert fill is not None
        assert fill["width"] / bar["width"] == pytest.approx(shares[0], abs=0.01)


def test_a_spike_and_its_gradient_are_one_card_that_follows_it_to_its_end(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 40)
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator("#incidents-none")).to_contain_text("No incident in 40 steps.")
        send_spike(ranks, 41)
        expect(page.locator("#headline-title")).to_contain_text("Warning: ")
        send_spike(ranks, 42)
        expect(page.locator("#headline-title")).to_contain_text("Critical: ")
        expect(page.locator("#headline-title")).to_contain_text("since step 41")
        expect(page.locator("#facts")).to_contain_text("Healthcritical")

        card = page.locator(".incident")
        expect(card).to_have_count(1)
        assert sorted(card.locator(".members .rule").all_inner_texts()) == ["gradient_explosion", "loss_spike"]
        expect(page.locator(".finding")).to_have_count(0)
        expect(page.locator("#loss-chart")).to_contain_text("#1")
        assert page.evaluate(MARKS) == [41], "one mark for one incident, at its onset"

        send_recovery(ranks, 43)
        expect(card.locator(".badge")).to_have_text("recovering")
        expect(card.locator(".members li", has_text="gradient_explosion").locator(".state")).to_have_text("resolved")
        expect(page.locator("#headline-title")).to_contain_text("recovering")
        send_steps(ranks, 48, 60)
        expect(card.locator(".badge")).to_have_text("resolved")
        expect(card).to_have_attribute("data-open", "false")
        expect(card.locator(".outcome")).to_have_text(only_incident(daemon, job)["reason"])
        expect(card.locator(".outcome")).to_contain_text("loss back at")
        expect(page.locator("#headline-title")).to_have_text("Nothing wrong now")

        send_spike(ranks, 61)
        expect(card.locator(".badge")).to_have_text("open")
        expect(card.locator(".when")).to_contain_text("reopened 1 time")
        expect(card).to_have_count(1)


@pytest.mark.long
def test_what_a_reader_has_unfolded_stays_so_through_updates_and_a_new_incident(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 40)
        send_spike(ranks, 41)
        send_spike(ranks, 42)
        page.goto(f"{daemon.url}?job={job}")
        card = page.locator(".incident", has_text=f"{job}/1")
        expect(causes(card).first).to_have_attribute("open", "")
        keys = [cause.get_attribute("data-key") for cause in card.locator(".causes > li").all()[:2]]
        first, second = (
            card.locator(f".causes > [data-key='{key}'] details") for key in keys
        )  # their order may change
        first.locator("summary").press("Enter")
        second.locator("summary").press("Enter")
        expect(first).not_to_have_attribute("open", "")
        expect(second).to_have_attribute("open", "")

        send_recovery(ranks, 43)
        send_steps(ranks, 48, 60)
        expect(card.locator(".badge")).to_have_text("resolved")
        expect(second.locator("summary")).to_be_focused()
        assert (is_unfolded(first), is_unfolded(second)) == (False, True)

        send_steps(ranks, 61, 500)
        send_nan(ranks, 501, rank=1)
        expect(page.locator(".incident")).to_have_count(2, timeout=30_000)
        expect(page.locator(".incident").first).to_contain_text(f"{job}/2")
        assert (is_unfolded(first), is_unfolded(second)) == (False, True)
        expect(second.locator("summary")).to_be_focused()

        page.reload()
        expect(page.locator(".incident")).to_have_count(2)
        assert [is_unfolded(why) for why in page.locator(".why").all()] == [True, False], "what is over comes folded"


def test_the_line_to_change_is_copied(
    daemon: DaemonProcess, page: Page, job: str, browser_context: BrowserContext
) -> None:
    browser_context.grant_permissions(["clipboard-read", "clipboard-write"], origin=daemon.url.rstrip("/"))
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 30)
        send_nan(ranks, 31, rank=1)
        page.goto(f"{daemon.url}?job={job}")
        line = only_incident(daemon, job, step=32)["diagnosis"]["causes"][0]["code"]
        expect(page.locator(".incident pre code").first).to_have_text(line)
        button = page.locator(".incident .copy").first
        button.click()
        expect(button).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == line
        page.locator("#headline-title").hover()
        expect(button).to_have_text("Copy")


def test_without_a_clipboard_the_line_is_selected(daemon: DaemonProcess, page: Page, job: str) -> None:
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 30)
        send_nan(ranks, 31, rank=1)
        page.goto(f"{daemon.url}?job={job}")
        line = only_incident(daemon, job, step=32)["diagnosis"]["causes"][0]["code"]
        expect(page.locator(".incident pre code").first).to_have_text(line)
        button = page.locator(".incident .copy").first
        button.click()
        expect(button).to_have_text("Press Ctrl-C")
        assert page.evaluate("getSelection().toString()") == line


@pytest.mark.long
def test_a_run_that_ends_with_an_open_incident_does_not_look_well(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 30)
        send_nan(ranks, 31, rank=1)
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator(".incident .badge")).to_have_text("open")
        for simulated in ranks:
            simulated.send(
                Bye(
                    step=32,
                )
            )
        expect(page.locator(".incident .badge")).to_have_text("unresolved")
        expect(page.locator(".incident .outcome")).to_have_text("the run ended")
        expect(page.locator(".incident .members .state")).to_have_text("open at the end")
        expect(page.locator("#headline-title")).to_have_text("Critical: Ended at step 32, non_finite unresolved")


@pytest.mark.long
def test_who_has_it_in_hand_is_seen_at_once_and_stays_text(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 30)
        send_nan(ranks, 31, rank=1)
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator(".incident .badge")).to_have_text("open")
        status, _ = daemon.post(f"/api/v1/jobs/{job}/incidents/1/ack", {"reason": MARKUP, "by": "ada"})
        assert status == 200
        expect(page.locator(".incident .badge")).to_have_text("acknowledged")
        expect(page.locator(".incident .outcome")).to_contain_text("acknowledged: ada")
        expect(page.locator(".incident .outcome")).to_contain_text(MARKUP)
        assert page.locator("img").count() == 0


def test_what_is_only_for_the_record_is_no_incident_and_stays_in_sight(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    hello = {"job": job, "blind": {"activations": "inside a full-graph compile"}}
    with simulated_ranks(daemon.endpoint, 2, hello) as ranks:
        send_steps(ranks, 1, 30)
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator("#record .finding")).to_contain_text("inside a full-graph compile")
        expect(page.locator("#record-hint")).to_have_text("1 finding, 1 open")
        expect(page.locator("#incidents-none")).to_contain_text("could not judge")
        expect(page.locator(".incident")).to_have_count(0)
        expect(page.locator("#headline-title")).to_have_text("Nothing wrong now")
        expect(page.locator("#facts")).to_contain_text("Healthok")


@pytest.mark.long
@pytest.mark.slow
def test_a_phone_shows_a_whole_diagnosis_without_scrolling_sideways(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 40)
        send_spike(ranks, 41)
        send_spike(ranks, 42)
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator(".causes details").nth(1)).to_be_visible()
        for summary in page.locator(".causes summary").all()[1:]:
            summary.click()
        expect(page.locator(".causes details:not([open])")).to_have_count(0)
        expect(page.locator(".refusals")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 360
