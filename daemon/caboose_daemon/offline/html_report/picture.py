"""The HTML report as a PNG, by a Chromium that is installed.

Design
------
plotly's own way to pictures (kaleido) drives a Chrome as well, and would give the charts without the text; so the
browser is started here, twice: once to ask how high the page is, once to take its picture. It runs headless, with a
profile of its own that is removed, and the file's own policy keeps it from the network.
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
"""It draws one page, and does nothing else that a browser does when it is started."""
SETTLE_MS = 2000
"""Of the page's own time, in which its charts are drawn."""


class PictureError(Exception):
    """No picture; the message says why and the way out."""


def find_browser() -> str:
    """The browser to use: CABOOSE_CHROMIUM, or the first one on PATH."""
    named = os.environ.get("CABOOSE_CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        missing = f"CABOOSE_CHROMIUM={named}: no such program" if named else "no Chromium or Chrome on PATH"
        raise PictureError(f"{missing}; install one, or name it in CABOOSE_CHROMIUM. The HTML report needs none")
    return found


def take_picture(page: Path, target: Path) -> None:
    """Writes the page's picture, from its top to its bottom."""
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="caboose-picture-") as profile:
        shown = _run(browser, profile, f"--window-size={WIDTH},2000", "--dump-dom", page.resolve().as_uri())
        height = re.search(r'<html[^>]* data-height="(\d+)"', shown)
        if height is None:
            raise PictureError(f"{browser}: the page was not drawn; open {page} in it to see why")
        size = f"--window-size={WIDTH},{min(MAX_HEIGHT, int(height[1]) + 40)}"
        picture = Path(profile) / "report.png"
        _run(browser, profile, size, "--hide-scrollbars", f"--screenshot={picture}", page.resolve().as_uri())
        if not picture.is_file():
            raise PictureError(f"{browser}: it took no picture; try another one, named in CABOOSE_CHROMIUM")
        try:
            shutil.copyfile(picture, target)
        except OSError as error:
            raise PictureError(f"{target}: {error.strerror}") from None


def _run(browser: str, profile: str, *arguments: str) -> str:
    command = [browser, "--headless", *QUIETLY, f"--user-data-dir={profile}/profile"]
    command.append(f"--virtual-time-budget={SETTLE_MS}")
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # root has no user namespace to build one in
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
