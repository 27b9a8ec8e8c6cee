"""A real browser, pages that must stay free of console errors, and a daemon that the tests share.

Design
------
One daemon and one browser context serve all tests of a session. Tests keep apart by the names of their jobs. One that
needs a daemon for itself asks for `lonely_daemon`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from support.browser import Watched, running_browser
from support.processes import DaemonProcess, running_daemon

TIMEOUT_MS = 15_000
PATIENT = """
[rules.rank_silent]
enabled = false

[rules.job_stalled]
enabled = false
"""
"""Simulated ranks say nothing while a slow browser is waited for; that is not what these tests are about."""


@pytest.fixture(scope="module")  # playwright holds the main thread's event loop, which others need after it
def browser_context() -> Iterator[BrowserContext]:
    with running_browser() as browser:
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        context.set_default_timeout(TIMEOUT_MS)
        expect.set_options(timeout=TIMEOUT_MS)
        yield context
        context.close()


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    directory = tmp_path_factory.mktemp("daemon")
    config = directory / "patient.toml"
    config.write_text(PATIENT)
    with running_daemon(directory, "--config", str(config)) as process:
        yield process


@pytest.fixture
def lonely_daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with running_daemon(tmp_path / "daemon") as process:
        yield process


@pytest.fixture
def watched(browser_context: BrowserContext) -> Iterator[Watched]:
    page = browser_context.new_page()
    watched = Watched(page)
    yield watched
    page.close()
    assert watched.complaints == []
    assert watched.hosts <= {"127.0.0.1"}, "the page needs nothing from anywhere else"


@pytest.fixture
def page(watched: Watched) -> Page:
    return watched.page


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A job's name that no other test uses."""
    return str(request.node.name).removeprefix("test_")
