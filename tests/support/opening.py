"""Opens the live page as somebody does who has never seen it, and tells how long that took.

Design
------
Each time a new Chromium with an empty profile opens the page in a new tab. Nothing is attached to it meanwhile: a
debugger, such as Playwright, makes scripts slower. The page itself notes when the job's numbers
were on the screen, and when all charts were; that is read afterwards, on the browser's own clock, which starts with the
navigation.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Playwright

from support.browser import CHROMIUM, FLAGS
from support.processes import end, wait_until

SETTLE_SECONDS, WAIT_SECONDS = 1.0, 30.0
ENTRIES = """["mark", "navigation", "resource"].flatMap((type) => performance.getEntriesByType(type).map((entry) => (
  { type, name: entry.name, startTime: entry.startTime, responseEnd: entry.responseEnd, size: entry.transferSize })))"""


@dataclass(frozen=True)
class Opening:
    """One time that the page was opened."""

    words_seconds: float
    """Until the job's numbers are there."""
    seconds: float
    """Until the charts are, too."""
    num_bytes: int
    browser_seconds: float
    """Processor time of the browser in the first seconds, live updates included."""
    transfers: list[dict[str, Any]]


def open_page(playwright: Playwright, url: str, job: str) -> Opening:
    """Opens the page in a new browser and looks at it once all of it must be there."""
    # A browser's children may still write for a moment after it has ended.
    cleanly = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with cleanly as profile, _chromium(Path(profile)) as (address, session):
        time.sleep(SETTLE_SECONDS)  # a browser has things to do when it starts
        before = processor_seconds(session=session)
        httpx.put(f"{address}/json/new?{url}?job={job}", timeout=WAIT_SECONDS).raise_for_status()
        for patience in (4.0, WAIT_SECONDS):
            time.sleep(patience)
            used = processor_seconds(session=session) - before
            entries = _entries(playwright, address, url)
            marks = {entry["name"]: entry["startTime"] / 1000 for entry in entries if entry["type"] == "mark"}
            if "caboose charts" in marks:
                break
        else:
            raise TimeoutError(f"{url}: no charts after {WAIT_SECONDS:g} s")
    transfers = [entry for entry in entries if entry["type"] != "mark"]
    num_bytes = sum(entry["size"] for entry in transfers)
    return Opening(marks["caboose words"], marks["caboose charts"], num_bytes, used, transfers)


def processor_seconds(*, pid: int = 0, session: int = 0) -> float:
    """Processor time of a process, or of all processes of a session."""
    ticks = 0
    for stat in Path("/proc").glob(f"{pid or '[0-9]*'}/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = stat.read_text().rpartition(")")[2].split()
            if pid or int(fields[3]) == session:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _chromium(profile: Path) -> Iterator[tuple[str, int]]:
    """A new browser that nobody debugs yet: the address at which it can be asked for tabs, and its session."""
    command = [CHROMIUM, *FLAGS, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        port = wait_until(lambda: (profile / "DevToolsActivePort").exists(), WAIT_SECONDS)
        if not port:
            raise TimeoutError(f"{CHROMIUM} did not start")
        yield f"http://127.0.0.1:{(profile / 'DevToolsActivePort').read_text().split()[0]}", process.pid
    finally:
        end(process)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children, in the session that is its own


def _entries(playwright: Playwright, address: str, url: str) -> list[dict[str, Any]]:
    browser = playwright.chromium.connect_over_cdp(address)
    try:
        (page,) = (page for context in browser.contexts for page in context.pages if page.url.startswith(url))
        entries: list[dict[str, Any]] = page.evaluate(ENTRIES)
        return entries
    finally:
        browser.close()
