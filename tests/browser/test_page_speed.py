"""A long run's page opens quickly in a browser that has nothing cached."""

from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from support.long_run import JOB, going_on, write_long_run
from support.opening import open_page
from support.processes import running_daemon, wait_until

STEPS, WORLD = 50_000, 64
GOAL_SECONDS, MARGIN = 2.0, 2.0
"""The margin is for machines that have more to do; `make bench-page` measures."""


@pytest.mark.slow
def test_fifty_thousand_steps_of_sixty_four_ranks_open_in_seconds(tmp_path: Path) -> None:
    write_long_run(tmp_path, STEPS, WORLD)
    with (
        running_daemon(tmp_path) as daemon,
        going_on(daemon.endpoint, STEPS + 1, WORLD),
        sync_playwright() as playwright,
    ):
        assert wait_until(lambda: daemon.get(f"/api/v1/jobs/{JOB}")["num_live"] == WORLD, 20)
        opening = min((open_page(playwright, daemon.url, JOB) for _ in range(2)), key=lambda opening: opening.seconds)

    assert opening.seconds < GOAL_SECONDS * MARGIN
    assert opening.words_seconds <= opening.seconds
    assert opening.num_bytes < 2_500_000
