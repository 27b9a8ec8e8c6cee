"""Each dashboard can be drawn without Grafana: one picture from a real Prometheus, without an empty panel."""

import html
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from support.browser import running_browser
from support.contact_sheet import Sheet, draw, said
from support.dashboards import dashboards, panels
from support.fleet import BIG
from support.watched_fleet import WatchedFleet

BOARDS = dashboards()
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("uid", BOARDS)
def test_a_dashboard_is_drawn_with_every_panel(uid: str, fleet: WatchedFleet, browser: Browser, tmp_path: Path) -> None:
    sheet = Sheet(fleet, fleet.prometheus, BOARDS[uid], BIG)

    assert [name for name in sheet.empty if not name.endswith("of each part")] == [], "the job has one model"
    assert [p["title"] for p in panels(BOARDS[uid]) if f"<b>{html.escape(p['title'])}</b>" not in sheet.page] == []
    assert draw(browser, sheet, tmp_path / "sheet.png") == []
    assert (tmp_path / "sheet.png").read_bytes().startswith(PNG)
    assert (tmp_path / "sheet.png").stat().st_size > 50_000, "curves, not a blank page"


@pytest.mark.parametrize(
    ("value", "settings", "text"),
    [
        (0.125, {"unit": "percentunit"}, "12.5 %"),
        (0.25, {"unit": "s"}, "250 ms"),
        (300.0, {"unit": "s"}, "5 min"),
        (12345.0, {"unit": "locale"}, "12,345"),
        (12345.0, {"unit": "bytes"}, "12.3 kB"),
        (2.0, {"mappings": [{"options": {"2": {"text": "warning"}}}]}, "warning"),
        (float("nan"), {"unit": "short"}, "nan"),
    ],
)
def test_values_are_formatted_as_in_grafana(value: float, settings: dict[str, object], text: str) -> None:
    assert said(value, settings)[0] == text
