"""The HTML report in a real browser, from a file, with no network."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from playwright.sync_api import BrowserContext, Page, expect

from caboose_daemon.cli import caboose
from caboose_daemon.offline.html_report.document import render
from caboose_daemon.offline.runs.run import Run
from caboose_wire import Layer, Module
from support.browser import CHROMIUM, Watched
from support.processes import wait_until
from support.scenario import JournaledCore, scenario

pytestmark = pytest.mark.slow


def a_report(directory: Path, *more: str) -> Path:
    """Of a job with layers, a NaN and an incident."""
    core = JournaledCore(directory / "journal.sqlite")
    layers = tuple(Layer(name=f"blocks.{i}.weight", numel=64, kind="Linear") for i in range(4))
    modules = tuple(Module(name=f"blocks.{i}.act", kind="ReLU", num_units=8) for i in range(4))
    story = scenario(
        2, core=core, job="llama", layers=layers, modules=modules, norms=[0.5] * 4, noise=0.02, falling=0.01
    )
    story.healthy(40).sampled(update_ratio=[1e-3] * 4, weight_norm=np.arange(1.0, 5.0), activation_dead=[0.5] * 4)
    story.nan_loss(1, at=50).healthy(10)
    core.close()
    target = directory / "report.html"
    done = CliRunner().invoke(caboose, ["report", f"{directory}/journal.sqlite:llama", "-o", str(target), *more])
    assert done.exit_code == 0, done.output
    return target


@pytest.fixture
def alone(browser_context: BrowserContext) -> Iterator[Callable[[Path], Page]]:
    """Opens a file, and sees to it that the page complains of nothing and asks nobody."""
    page = browser_context.new_page()
    watched = Watched(page)

    def opened(file: Path) -> Page:
        page.goto(file.as_uri())
        return page

    yield opened
    page.close()
    assert watched.complaints == []
    assert watched.hosts <= {None, ""}


def test_it_opens_from_a_file_with_all_its_charts_at_any_width(tmp_path: Path, alone: Callable[[Path], Page]) -> None:
    page = alone(a_report(tmp_path))

    expect(page.get_by_role("heading", name="llama")).to_be_visible()
    for chart in ("loss", "grad_norm", "lr", "layer:update_ratio", "modules"):
        expect(page.locator(f'[data-chart="{chart}"] .main-svg').first).to_be_visible()
    expect(page.locator("#incidents details").first).to_contain_text("non_finite")
    expect(page.locator("#legend")).to_contain_text("not finite")

    kind = "document.querySelector('[data-chart=loss]').layout.yaxis.type"
    assert page.evaluate(kind) == "linear"
    page.get_by_role("button", name="log scale").click()
    assert page.evaluate(kind) == "log"
    page.get_by_role("button", name="smooth").click()
    expect(page.locator("#legend")).not_to_contain_text("minimum to maximum")
    page.get_by_role("button", name="light or dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 18, 23)"

    page.set_viewport_size({"width": 360, "height": 700})
    assert wait_until(lambda: page.evaluate("document.documentElement.scrollWidth") <= 360, 10)


def test_extremes_phases_and_throughput_are_drawn_and_named(tmp_path: Path, alone: Callable[[Path], Page]) -> None:
    num = 6000
    norms, slowest = np.full(num, 0.5), np.full(num, 0.4)
    norms[4321], slowest[1234] = 50.0, 7.0
    curves = {
        "loss": np.linspace(4, 2, num),
        "grad_norm": norms,
        "step_seconds": slowest,
        "data_seconds": np.full(num, 0.01),
        "forward_seconds": np.full(num, 0.1),
        "backward_seconds": np.full(num, 0.2),
        "tokens_per_second": 1000 / slowest,
    }
    ones = np.ones(num, np.int64)
    file = tmp_path / "long.html"
    file.write_text(render(Run("long", "log", "", ones, np.arange(num), curves, num_bad=0 * ones)))

    page = alone(file)

    def highest(chart: str) -> float:
        drawn = f"document.querySelector('[data-chart={chart}]').data"
        return float(page.evaluate(f"Math.max(...{drawn}.flatMap((trace) => trace.y).filter((y) => y !== null))"))

    expect(page.locator('[data-chart="throughput"] .main-svg').first).to_be_visible()
    assert (highest("grad_norm"), highest("step_seconds")) == (50.0, 7.0)
    for words in ("slowest step", "other", "backward", "forward", "data"):
        expect(page.locator('[data-legend="step_seconds"]')).to_contain_text(words)
    expect(page.locator('[data-legend="grad_norm"]')).to_contain_text("minimum to maximum")
    expect(page.locator("#curves")).to_contain_text("tokens per second")


def test_its_picture_shows_the_whole_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CABOOSE_CHROMIUM", CHROMIUM)
    picture = tmp_path / "report.png"

    a_report(tmp_path, "--png", str(picture))

    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
    assert width == 1280
    assert height > 1500
