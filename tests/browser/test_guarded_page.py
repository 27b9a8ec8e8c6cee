"""The page of a daemon with a token for reading: the browser asks for it, and the live stream works with it."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from support.browser import running_browser
from support.processes import running_daemon
from support.ranks import send_steps, simulated_ranks

TOKEN = "read-token-0123456789"
pytestmark = pytest.mark.slow


@pytest.mark.long
@pytest.mark.slow
def test_a_browser_that_gives_the_token_as_password_follows_the_run(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    with (
        running_daemon(tmp_path / "daemon", "--read-token-file", str(file)) as daemon,
        simulated_ranks(daemon.endpoint, 1) as ranks,
        running_browser() as browser,
    ):
        send_steps(ranks, 1, 5)
        answer = browser.new_context().request.get(daemon.url)
        assert (answer.status, answer.headers["www-authenticate"].split()[0]) == (401, "Basic")

        context = browser.new_context(http_credentials={"username": "me", "password": TOKEN})
        page = context.new_page()
        page.goto(f"{daemon.url}?job=train")
        expect(page).to_have_title("train \u00b7 step 5 \u00b7 Caboose", timeout=15_000)
        send_steps(ranks, 6, 9)
        expect(page).to_have_title("train \u00b7 step 9 \u00b7 Caboose", timeout=15_000)
