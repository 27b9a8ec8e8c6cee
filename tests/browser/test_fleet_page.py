"""The page of a large fleet: thousands of ranks, hundreds of jobs and incidents, and a daemon that comes back."""

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from caboose_wire import Bye
from support.browser import Watched
from support.processes import DaemonProcess, running_daemon
from support.ranks import send_steps, simulated_ranks

pytestmark = pytest.mark.slow

A_FLEET = """
const { drawRanks } = await import("/static/ranks.js");
const ranks = Array.from({ length: 4096 }, (_, rank) => ({
  rank, host: `gpu-${rank >> 3}`, pid: 1, state: "live", step: 9, num_missed: 0, num_dropped: 0,
  agent_state: "training", agent_failures: 0, error: "", silent_seconds: 0,
  loss: 2 + Math.sin(rank) / 20, step_seconds: 0.4 + Math.cos(rank) / 100,
}));
const model = { status: { world: 4096, ranks }, findings: new Map() };
const canvas = document.getElementById("rank-grid");
document.getElementById("job").hidden = false;
"""
TAKES = f"""async (measure) => {{
  {A_FLEET}
  document.getElementById("rank-measure").value = measure;
  document.getElementById("rank-measure").dispatchEvent(new Event("change"));
  let best = Infinity;
  for (let time = 0; time < 5; time += 1) {{
    const began = performance.now();
    drawRanks(model);
    best = Math.min(best, performance.now() - began);
  }}
  return best;
}}"""
PIXELS = f"""async () => {{
  {A_FLEET}
  drawRanks(model);
  const {{ arrange }} = await import("/static/rankgrid.js");
  const plan = arrange(ranks, canvas.parentElement.clientWidth - 4);
  const scale = canvas.width / canvas.clientWidth;
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {{ willReadFrequently: true }});
  const colour = (place) => {{
    const [x, y] = [plan.xs[place], plan.ys[place]].map((at) => Math.floor((at + 2 + plan.size / 2) * scale));
    copy.clearRect(0, 0, canvas.width, canvas.height);
    copy.drawImage(canvas, 0, 0);
    return [...copy.getImageData(x, y, 1, 1).data].join();
  }};
  const apart = new Set(ranks.map((_, place) => `${{plan.xs[place]}} ${{plan.ys[place]}}`));
  const height = canvas.getBoundingClientRect().height;
  const before = colour(77);
  Object.assign(ranks[77], {{ state: "failed", error: "killed" }});
  drawRanks(model);
  const [isMarked, isAlike] = [before !== colour(77), before === colour(78)];
  return {{ apart: apart.size, height, size: plan.size, isMarked, isAlike }};
}}"""
MANY_JOBS = """async () => {
  const { drawOverview, JobList } = await import("/static/overview.js");
  const list = new JobList();
  const jobs = Array.from({ length: 200 }, (_, number) => ({
    job: `job-${number}`, state: "running", attempt: 1, rollback: "off", world: 8, num_live: 8, step: number, loss: 2,
    rollback_mode: "off", step_seconds: 0.4, created: 1, heard: null,
    ...(number === 150 ? { health: "critical", num_open: 2, worst_rule: "loss_spike" } : { health: "ok", num_open: 0 }),
  }));
  list.take({ is_whole: true, now: 10, jobs });
  document.getElementById("overview").hidden = false;
  drawOverview(list);
  const began = performance.now();
  list.take({ now: 11, jobs: [{ job: "job-3", step: 999 }] });
  drawOverview(list);
  const names = [...document.querySelectorAll(".job-open")].map((link) => link.textContent);
  return { ms: performance.now() - began, first: names[0], count: names.length, step: list.jobs.get("job-3").step };
}"""
MANY_INCIDENTS = """async () => {
  const { drawTimeline } = await import("/static/timeline.js");
  const rules = Array.from({ length: 20 }, (_, number) => `rule_${number}`);
  const incidents = Array.from({ length: 200 }, (_, place) => ({
    number: place + 1, attempt: 1, rule: rules[place % 20], severity: "warning",
    worst: place % 7 ? "warning" : "critical",
    onset_step: place * 50, opened_step: place * 50 + 5, last_step: place * 50 + 20, acknowledged: null,
    is_open: place > 195, closed_step: place > 195 ? null : place * 50 + 30,
  }));
  const byNumber = new Map(incidents.map((one) => [one.number, one]));
  const rows = [{ attempt: 1, step: 1, numSteps: 1 }];
  const model = { incidents: byNumber, rows, status: { attempt: 1, step: 10000 }, rollbacks: () => [] };
  document.getElementById("job").hidden = false;
  drawTimeline(model);
  const began = performance.now();
  drawTimeline(model);
  const bars = [...document.querySelectorAll(".bar-mark")];
  return {
    ms: performance.now() - began, bars: bars.length, stops: bars.filter((bar) => bar.tabIndex === 0).length,
    height: document.getElementById("timeline").offsetHeight, wide: document.documentElement.scrollWidth,
  };
}"""


def test_four_thousand_ranks_are_on_one_screen_each_in_its_place(daemon: DaemonProcess, page: Page) -> None:
    for width in (1400, 3840):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"{daemon.url}?job=nobody")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Unknown job")
        seen = page.evaluate(PIXELS)
        assert seen["apart"] == 4096
        assert seen["height"] <= 420
        assert seen["size"] >= 4
        assert seen["isMarked"]
        assert seen["isAlike"]


@pytest.mark.parametrize("measure", ["state", "loss"])
def test_four_thousand_ranks_are_drawn_in_a_tenth_of_a_second(daemon: DaemonProcess, page: Page, measure: str) -> None:
    page.goto(f"{daemon.url}?job=nobody")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Unknown job")
    assert page.evaluate(TAKES, measure) < 100


def test_the_page_follows_changes_of_single_ranks(daemon: DaemonProcess, page: Page, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 3, {"job": job}) as ranks:
        send_steps(ranks, 1, 3)
        page.goto(f"{daemon.url}?job={job}")
        rows = page.locator("#rank-table tbody tr")
        expect(rows.nth(1).locator("td").nth(2)).to_have_text("3")
        send_steps(ranks[1:2], 4, 4, loss=1.25)
        expect(rows.nth(1).locator("td").nth(3)).to_have_text("1.250")
        expect(rows.nth(0).locator("td").nth(2)).to_have_text("3")
        ranks[2].send(Bye(step=3, error="CUDA out of memory"))
        expect(rows.nth(2)).to_contain_text("CUDA out of memory")
        expect(rows.nth(1).locator("td").nth(3)).to_have_text("1.250")


def test_two_hundred_jobs_are_no_more_than_a_change_costs(daemon: DaemonProcess, page: Page) -> None:
    page.goto(f"{daemon.url}?job=nobody")
    expect(page.get_by_role("heading", level=1).first).to_contain_text("Unknown job")
    page.route("**/series?points=60", lambda route: route.fulfill(json={"steps": []}))
    seen = page.evaluate(MANY_JOBS)
    assert (seen["count"], seen["first"], seen["step"]) == (200, "job-150", 999)
    assert seen["ms"] < 100


def test_a_restarted_daemon_is_found_again_by_the_overview(lonely_daemon: DaemonProcess, watched: Watched) -> None:
    page = watched.page
    watched.may_lose_connection = True
    page.goto(f"{lonely_daemon.url}?jobs")
    expect(page.get_by_role("heading", level=1)).to_have_text("No job has reported yet")
    with simulated_ranks(lonely_daemon.endpoint, 1) as ranks:
        send_steps(ranks, 1, 5)
        expect(page.locator('.job-row[data-key="train"]').locator(".of-step")).to_have_text("5")
        lonely_daemon.kill()
        expect(page.locator("#lost")).to_contain_text("Data shown is from")
        http = urlsplit(lonely_daemon.url).netloc
        with running_daemon(lonely_daemon.data_dir.parent, listen=lonely_daemon.endpoint, http=http):
            expect(page.locator("#lost")).to_be_hidden()
            expect(page.locator('.job-row[data-key="train"]')).to_contain_text("no report since the restart")


def test_no_incident_makes_no_timeline_and_two_hundred_a_small_one(daemon: DaemonProcess, page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{daemon.url}?job=nobody")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Unknown job")
    expect(page.locator("#timeline")).to_be_hidden()
    seen = page.evaluate(MANY_INCIDENTS)
    assert (seen["bars"], seen["stops"], seen["wide"]) == (200, 1, 360)
    assert seen["height"] < 400
    assert seen["ms"] < 100
