"""The picture of the HTML report, of a job in a journal that a daemon may be writing."""

import tempfile
from pathlib import Path

from playwright.sync_api import Browser

from caboose_daemon.offline.html_report.document import render
from caboose_daemon.offline.runs.opening import journal_runs


def report_picture(browser: Browser, path: Path, journal: Path, job: str) -> None:
    """Writes the report and takes its picture."""
    (run,) = journal_runs(journal, job)
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "report.html"
        file.write_text(render(run).replace(str(journal.parent), "caboose-data"), encoding="utf-8")
        page = browser.new_page(viewport={"width": 1280, "height": 1500}, color_scheme="light")
        page.goto(file.as_uri())
        page.wait_for_selector('[data-chart="loss"] .scatterlayer path', state="attached")
        page.screenshot(path=path)
        page.close()
