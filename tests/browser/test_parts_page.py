"""A job of several models on the live page: a line and a name for each part."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from caboose_wire import Group, Part
from support.processes import DaemonProcess
from support.ranks import send_steps, simulated_ranks

pytestmark = [pytest.mark.slow, pytest.mark.long]

HELLO: dict[str, Any] = {
    "parts": (Part("critic", (0, 2), (0, 1)), Part("actor", (2, 4), (1, 2))),
    "groups": (Group("critic.0", "Adam"), Group("actor.0", "Adam")),
}
LINES = """(chart) => Object.fromEntries((document.getElementById(`${chart}-chart`).data ?? [])
  .filter((trace) => trace.meta && trace.mode === "lines").map((trace) => [trace.meta, trace.y]))"""


def test_each_part_is_a_line_with_its_name(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 1, {"job": job, **HELLO}) as ranks:
        for step in range(1, 21):
            send_steps(ranks, step, step, part_losses=(2.0, None if step % 2 else -3.0), lr=(0.5, 0.25))
        page.goto(f"{daemon.url}?job={job}")
        page.wait_for_function(f"() => ({LINES})('loss').critic?.length === 20")
        losses = page.evaluate(LINES, "loss")
        assert losses["critic"] == [2.0] * 20
        assert losses["actor"] == [-3.0] * 10, "steps without an update are no gap"
        assert {name: y[-1] for name, y in page.evaluate(LINES, "lr").items()} == {"critic": 0.5, "actor": 0.25}
        assert page.evaluate(LINES, "norm").keys() == {"critic", "actor"}
        expect(page.locator("#legend")).to_contain_text("critic")
        expect(page.locator("#legend")).to_contain_text("actor")
        send_steps(ranks, 21, 21, part_losses=(2.5, -4.0), lr=(0.5, 0.25))
        page.wait_for_function(f"() => ({LINES})('loss').actor?.at(-1) === -4")
        assert page.evaluate(LINES, "loss")["critic"][-1] == 2.5
