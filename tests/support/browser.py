"""A real browser for tests and pictures."""

import contextlib
from collections.abc import Iterator
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",  # a container's root has no user namespace to build one in
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Watched:
    """A page, what it complained about on its console, and whom it talked to."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.may_lose_connection = False
        self.hosts: set[str | None] = set()
        page.on("console", self._heard)
        page.on("request", lambda request: self._asked(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _asked(self, url: str) -> None:
        if not url.startswith(("blob:", "data:")):  # made by the page itself
            self.hosts.add(urlsplit(url).hostname)

    def _heard(self, message: ConsoleMessage) -> None:
        is_network = message.text.startswith("Failed to load resource: net::ERR_")
        if message.type in ("error", "warning") and not (self.may_lose_connection and is_network):
            self.complaints.append(f"{message.type}: {message.text}")


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """A headless Chromium that is gone when the block ends."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
