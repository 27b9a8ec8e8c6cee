"""The HTML report as a PNG, made by an installed Chromium.

Design
------
plotly's image export (kaleido) also runs a Chrome, but gives the charts without the text. So the browser is started
here, twice: once for the page's height, once for the screenshot. It runs headless, with a temporary profile, and the
file's content policy keeps it off the network.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
WIDTH = 1280
MAX_HEIGHT = 16_000
TIMEOUT_SECONDS = 60
QUIETLY = (
    *("--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-extensions", "--disable-default-apps"),
)
"""Disables everything a browser does at start besides showing one page."""
SETTLE_MS = 2000
"""Virtual time for the charts to be drawn."""


class PictureError(Exception):
    """No picture could be made; the message names the reason and the fix."""


def find_browser() -> str:
    """The browser to use: CABOOSE_CHROMIUM, or the first one on PATH."""
    named = os.environ.get("CABOOSE_CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        missing = f"CABOOSE_CHROMIUM={named}: no such program" if named else "no Chromium or Chrome on PATH"
        raise PictureError(f"{missing}; install one, or name it in CABOOSE_CHROMIUM. The HTML report needs no browser")
    return found


def take_picture(page: Path, target: Path) -> None:
    """Writes a screenshot of the whole page."""
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="caboose-picture-") as profile:
        shown = _run(browser, profile, f"--window-size={WIDTH},2000", "--dump-dom", page.resolve().as_uri())
        height = re.search(r'<html[^>]* data-height="(\d+)"', shown)
        if height is None:
            raise PictureError(f"{browser}: the page was not drawn; open {page} in this browser to see why")
        size = f"--window-size={WIDTH},{min(MAX_HEIGHT, int(height[1]) + 40)}"
        picture = Path(profile) / "report.png"
        _run(browser, profile, size, "--hide-scrollbars", f"--screenshot={picture}", page.resolve().as_uri())
        if not picture.is_file():
            raise PictureError(f"{browser}: no screenshot was written; try another browser with CABOOSE_CHROMIUM")
        try:
            shutil.copyfile(picture, target)
        except OSError as error:
            raise PictureError(f"{target}: {error.strerror}") from None


def _run(browser: str, profile: str, *arguments: str) -> str:
    command = [browser, "--headless", *QUIETLY, f"--user-data-dir={profile}/profile"]
    command.append(f"--virtual-time-budget={SETTLE_MS}")
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # the sandbox does not work as root
    try:
        done = subprocess.run(  # noqa: S603 - a program the user installed, on a file of our own
            [*command, *arguments], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise PictureError(f"{browser}: no picture after {TIMEOUT_SECONDS} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise PictureError(f"{browser}: exit code {done.returncode}: {last}")
    return done.stdout
