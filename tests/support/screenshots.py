"""Takes the pictures of the live page and of the report that README and docs show.

    PYTHONPATH=tests python -m support.screenshots docs/images

Real daemons, simulated ranks on real sockets (`support.picture_story`), a real run that is rolled back, a real browser.
"""

import contextlib
import re
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from support.browser import running_browser
from support.picture_story import (
    CRASHED,
    DONE,
    FAILED,
    PER_HOST,
    QUIET,
    SILENT_HOST,
    VIT,
    VIT_HELLO,
    WIDE,
    WIDE_RANKS,
    a_beat,
    tell_small,
    tell_vit,
    tell_wide,
)
from support.processes import clean_environment, end, running_daemon
from support.ranks import SimulatedRank, simulated_ranks
from support.report_picture import report_picture

DEMO_SECONDS = 300.0
LAYER = "blocks.17.mlp.up.weight"
PATIENT = "[rules.job_stalled]\nenabled = false\n"
"""The simulated jobs stand still while their pictures are taken."""


@contextlib.contextmanager
def living(ranks: list[SimulatedRank]) -> Iterator[None]:
    """Meanwhile every rank says that it lives, from a thread that has the sockets for itself: browsers can be slow."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(1.0):
            for simulated in ranks:
                simulated.send(a_beat(simulated))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Camera:
    """Takes pictures into a folder."""

    def __init__(self, browser: Browser, directory: Path) -> None:
        self._browser = browser
        self._directory = directory

    @contextlib.contextmanager
    def looking_at(
        self, url: str, *, scheme: Any = "dark", width: int = 1400, height: int = 900, scale: float = 1.0
    ) -> Iterator[Page]:
        """A page once everything on it is drawn."""
        context = self._browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=scale
        )
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector("#loss-chart canvas, #jobs-list .job-row", state="attached")
        page.wait_for_timeout(2500)  # for the layers, and a status with every rank's last word
        yield page
        context.close()

    def take(self, page: Page, name: str, section: str = "") -> None:
        """The page as it is seen, or one section of it whole."""
        path = self._directory / f"{name}.png"
        if section:
            page.evaluate("document.querySelector('header.bar').style.position = 'static'")  # else it lies over it
            page.locator(section).scroll_into_view_if_needed()
            page.wait_for_timeout(500)
            page.locator(section).screenshot(path=path)
        else:
            page.screenshot(path=path)
        print(path)

    def take_report(self, journal: Path, job: str) -> None:
        """The HTML report of a job."""
        report_picture(self._browser, self._directory / "report.png", journal, job)
        print(self._directory / "report.png")


def pictures_of_jobs(camera: Camera) -> None:
    """Of simulated jobs: the overview, one job and its parts, on a desk, a wall and a telephone, and its report."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (home / "caboose.toml").write_text(PATIENT)
        daemon = stack.enter_context(running_daemon(home, "--config", str(home / "caboose.toml")))
        # One after the other: who has said hello and then waits for the others' stories is found silent.
        wide = stack.enter_context(simulated_ranks(daemon.endpoint, WIDE_RANKS, {"job": WIDE}, per_host=PER_HOST))
        tell_wide(daemon, wide)
        small = [
            stack.enter_context(simulated_ranks(daemon.endpoint, 1, {"job": job}))[0] for job in (QUIET, DONE, CRASHED)
        ]
        tell_small(small[0], ends=False, seed=1)
        tell_small(small[1], ends=True)
        tell_small(small[2], ends=True, error="RuntimeError: CUDA error: an illegal memory access", seed=2)
        vit = stack.enter_context(simulated_ranks(daemon.endpoint, 8, VIT_HELLO, per_host=4))
        tell_vit(daemon, vit)
        alive = [r for r in wide if r.hello.rank // PER_HOST != SILENT_HOST and r.hello.rank != FAILED]
        with living([*vit, small[0], *alive]):
            pictures_of_one(camera, f"{daemon.url}?job={VIT}")
            with camera.looking_at(f"{daemon.url}?job={WIDE}", scheme="dark") as page:
                camera.take(page, "page-ranks", "#ranks")
            with camera.looking_at(f"{daemon.url}?jobs", scheme="dark", height=410) as page:
                camera.take(page, "page-jobs")
            camera.take_report(daemon.data_dir / "journal.sqlite", VIT)


def pictures_of_one(camera: Camera, url: str) -> None:
    """Of one job that is in trouble."""
    for scheme in ("dark", "light"):
        with camera.looking_at(url, scheme=scheme) as page:
            camera.take(page, f"page-{scheme}")
    with camera.looking_at(url, scheme="light") as page:
        camera.take(page, "page-curves", "#charts")
        camera.take(page, "page-incident", "#incidents")
        camera.take(page, "page-checkpoints", "#checkpoints")
        page.locator("#layer-stats button", has_text="Dead units").click()
        page.wait_for_timeout(1000)
        camera.take(page, "page-layers", "#layers")
    with camera.looking_at(f"{url}#layer={LAYER}", scheme="light") as page:
        page.wait_for_selector("#layer-charts canvas", state="attached")
        page.locator("#layer-detail").evaluate("part => part.style.padding = '14px'")
        camera.take(page, "page-layer", "#layer-detail")
    with camera.looking_at(url, scheme="dark", width=3840, height=2160, scale=0.5) as page:
        camera.take(page, "page-wall")
    with camera.looking_at(url, scheme="dark", width=360, height=780) as page:
        camera.take(page, "page-phone")


def picture_of_a_rollback(camera: Camera) -> None:
    """Of the demo: a real run whose loss breaks, and which all ranks take back."""
    command = [sys.executable, "-m", "caboose_daemon", "demo", "--keep"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment())
    timer = threading.Timer(DEMO_SECONDS, process.kill)
    timer.start()
    try:
        assert process.stdout is not None, "it is a pipe"
        line = next(line for line in process.stdout if "stays up" in line)
        url = re.search(r"http://\S+", line)
        assert url is not None, line
        with camera.looking_at(url[0], scheme="light") as page:
            camera.take(page, "page-rollback", "#charts")
    finally:
        timer.cancel()
        end(process, patience=20)


def main() -> None:
    """Writes all of them."""
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    directory.mkdir(parents=True, exist_ok=True)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every rank has its sockets
    with running_browser() as browser:
        camera = Camera(browser, directory)
        pictures_of_jobs(camera)
        picture_of_a_rollback(camera)


if __name__ == "__main__":
    main()
