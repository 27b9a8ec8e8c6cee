"""The ranks on the live page: a table of a few, a map of thousands, and the ones that stand out by name."""

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from caboose_wire import Bye, Event, Heartbeat, Phases
from support.processes import DaemonProcess, wait_until
from support.ranks import a_report, send_steps, simulated_ranks

pytestmark = pytest.mark.slow


def facts(page: Page) -> Locator:
    return page.locator("#rank-facts")


def facts_at(page: Page, x: int, y: int) -> str:
    """What is reported when somebody points there."""
    page.mouse.move(0, 0)
    page.locator("#rank-grid").hover(position={"x": x, "y": y})
    return facts(page).inner_text()


def choose_measure(page: Page, name: str) -> None:
    page.get_by_label("Colour by").select_option(label=name)


def slow(seconds: float) -> Any:
    return Phases(total=seconds, data=0.01, forward=0.03, backward=0.05, optimizer=0.01)


def test_many_ranks_make_a_map_that_names_the_one_in_trouble(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 80, {"job": job}, per_host=8) as ranks:
        send_steps(ranks, 1, 2)
        ranks[71].send(Bye(step=2, error="killed"))
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator("#ranks-hint")).to_have_text("79 live, 1 failed")
        expect(page.locator("#rank-scroll")).to_be_hidden()
        worst = page.locator("#rank-worst li")
        expect(worst).to_have_count(1)
        expect(worst).to_have_text("rank 71node8failed, killed")
        expect(page.locator("#rank-legend")).to_contain_text("failed")
        worst.locator("button").click()
        expect(facts(page)).to_contain_text("71 on node8")
        assert wait_until(lambda: "0 on node0" in facts_at(page, x=6, y=24), 10), "what is above may still grow"
        expect(facts(page)).to_contain_text("Step2, 0 steps behind")
        page.mouse.move(0, 0)
        expect(facts(page)).to_contain_text("71 on node8")


def test_a_host_of_which_one_thing_is_said_is_one_line(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 80, {"job": job}, per_host=8) as ranks:
        send_steps(ranks, 1, 2)
        for rank in (*range(24, 32), 40, 42, 71):
            error = "killed" if rank == 71 else "host lost"
            ranks[rank].send(Bye(step=2, error=error))
        page.goto(f"{daemon.url}?job={job}")

        expect(page.locator("#rank-worst li")).to_have_text(
            ["node3ranks 24 to 31failed, host lost", "node52 ranksfailed, host lost", "rank 71node8failed, killed"]
        )
        page.locator("#rank-worst button").first.click()
        expect(facts(page)).to_contain_text("24 on node3")
        expect(page.locator("#rank-worst button").first).to_have_attribute("aria-pressed", "true")


def test_each_measure_names_its_own_worst_and_is_remembered(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 80, {"job": job}, per_host=8) as ranks:
        for step in range(1, 6):
            for rank, simulated in enumerate(ranks):
                if rank == 40 and step > 1:
                    continue
                loss = 9.0 if rank == 12 else 2.0 + rank / 1000
                seconds = 0.9 if rank == 33 else 0.4 + rank / 10_000
                simulated.send(a_report(step, seq=step + (7 if rank == 5 else 0), loss=loss, phases=slow(seconds)))
        page.goto(f"{daemon.url}?job={job}")
        first = page.locator("#rank-worst li").first
        for name, rank, words in (
            ("Step time", 33, "900 ms, 2.2"),
            ("Loss", 12, "9.000, 3"),
            ("Out of step", 40, "4 steps behind"),
        ):
            choose_measure(page, name)
            expect(first).to_contain_text(f"rank {rank}")
            expect(first).to_contain_text(words.replace("0 ms", "0\u202fms"))
            expect(first.locator(".glyph")).to_have_attribute("data-kind", "warning")
        page.reload()
        expect(page.get_by_label("Colour by")).to_have_value("behind")
        choose_measure(page, "State")


def test_the_map_is_read_with_the_keyboard_and_filtered_by_host(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 80, {"job": job}, per_host=8) as ranks:
        send_steps(ranks, 1, 2)
        page.goto(f"{daemon.url}?job={job}")
        expect(page.locator("#ranks-hint")).to_have_text("80 live")
        page.locator("#rank-filter").focus()
        page.keyboard.press("Tab")
        expect(page.locator("#rank-grid")).to_be_focused()
        expect(facts(page)).to_contain_text("0 on node0")
        for key, rank in (("ArrowRight", 1), ("ArrowDown", 5), ("ArrowRight", 6), ("End", 79), ("ArrowLeft", 78)):
            page.keyboard.press(key)
            expect(facts(page)).to_contain_text(f"Rank{rank} on node{rank // 8}")
            expect(page.locator("#rank-shown")).to_contain_text(f"Rank {rank},")
        page.keyboard.press("Escape")
        expect(facts(page)).to_be_hidden()
        choose_measure(page, "Loss")
        page.locator("#rank-filter").fill("NODE3")
        expect(page.locator("#rank-worst li")).to_have_count(8)
        assert set(page.locator("#rank-worst .worst-host").all_inner_texts()) == {"node3"}
        page.locator("#rank-filter").fill("nowhere")
        expect(page.locator("#rank-worst-none")).to_have_text("No host or rank matches “nowhere”.")
        choose_measure(page, "State")


def test_a_rank_of_a_few_that_is_far_from_the_others_is_marked_in_the_table(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 8, {"job": job}) as ranks:
        for rank, simulated in enumerate(ranks):
            simulated.send(a_report(1, loss=2.0 + rank / 1000, phases=slow(0.8 if rank == 6 else 0.4 + rank / 10_000)))
        page.goto(f"{daemon.url}?job={job}")
        cell = page.locator("#rank-table tbody tr").nth(6).locator("td").nth(4)
        expect(cell).to_have_attribute("data-some", "true")
        expect(cell).to_have_attribute("title", "800\u202fms, 2.00\u00d7 the median")
        expect(page.locator("#rank-table [data-some=true]")).to_have_count(1)
        expect(page.locator("#rank-tools")).to_be_hidden()


# Checkpoints


def test_checkpoints_are_there_where_rollback_is_off_and_say_when_there_is_none(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job}) as ranks:
        send_steps(ranks, 1, 20)
        page.goto(f"{daemon.url}?job={job}")
        section = page.locator("#checkpoints")
        expect(section).to_contain_text("None known.")
        expect(page.locator("#rollback")).to_be_hidden()
        saved = {"path": "/ckpt/10", "step": 10, "num_bytes": 1_494_000_000, "ours": True}
        ranks[0].send(Event(attempt=0, step=10, time=1.0, kind="checkpoint", fields=saved))
        ranks[0].send(Event(attempt=0, step=20, time=1.0, kind="checkpoint", fields={"path": "/mine/20", "step": 20}))
        expect(page.locator("#saved-hint")).to_have_text("2 on disk")
        entries = section.locator(".saved")
        expect(entries.nth(1)).to_contain_text("1.49\u202fGB · saved by Caboose/ckpt/10")
        expect(entries.nth(0)).to_contain_text("size unknown · saved by the run/mine/20")
        expect(entries.nth(0)).to_contain_text("unproven")
        expect(section).to_contain_text("unproven: too recent to judge")
        expect(page.locator("#rollback")).to_be_hidden()


# Numbers of the device


def test_the_device_of_a_rank_has_columns_and_a_rank_without_one_has_dashes(
    daemon: DaemonProcess, page: Page, job: str
) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 2)
        ranks[1].send(a_report(3, device_bytes=61 * 10**9, is_sampled=True))
        ranks[1].send(Heartbeat(step=3, utilization=0.97))
        page.goto(f"{daemon.url}?job={job}")

        expect(page.locator("#rank-table thead")).to_contain_text("Device busyDevice memoryLast seen")
        rows = page.locator("#rank-table tbody tr")
        expect(rows.nth(1).locator('[data-column="device_utilization"]')).to_have_text("97\u202f%")
        expect(rows.nth(1).locator('[data-column="device_bytes"]')).to_have_text("61.0\u202fGB")
        expect(rows.nth(0).locator('[data-column="device_bytes"]')).to_have_text("\u2013")


def test_on_a_cpu_there_are_no_columns_of_a_device(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 2)
        page.goto(f"{daemon.url}?job={job}")

        expect(page.locator("#rank-table tbody tr")).to_have_count(2)
        for cell in page.locator('#rank-table [data-column="device_bytes"]').all():
            expect(cell).to_be_hidden()


def test_a_map_is_coloured_by_device_memory(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 80, {"job": job}, per_host=8) as ranks:
        for simulated in ranks:
            used = 70 * 10**9 if simulated.hello.rank == 33 else 40 * 10**9
            simulated.send(a_report(1, device_bytes=used, is_sampled=True))
        page.goto(f"{daemon.url}?job={job}")
        choose_measure(page, "Device memory")

        expect(page.locator("#rank-worst li")).to_have_text(["rank 33node470.0\u202fGB"])
