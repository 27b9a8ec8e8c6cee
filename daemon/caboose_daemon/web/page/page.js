/*
 * The live page: chooses a job, loads it, follows its stream, and draws at a bounded pace.
 *
 * Every (re)connection of the stream loads everything again, so a restarted daemon or a sleeping laptop leaves no
 * hole. Updates that arrive while an answer is on its way are kept and put on top of it.
 */

import { get, jobPath, openStream } from "./api.js";
import { drawCharts, startCharts } from "./charts.js";
import { byId, glyph, keyed, make, setData, setNote, setText } from "./dom.js";
import { drawFindings, startFindings } from "./findings.js";
import { plural, stateName, whole } from "./format.js";
import { FETCH_POINTS, JobModel, MAX_ROWS } from "./model.js";
import { drawEvents, drawHeadline, drawRun, drawSight, drawTiles, jobMark, jobState } from "./panels.js";
import { drawRanks } from "./ranks.js";

const FRAME_MS = 250;
const JOBS_MS = 4000;
const RETRY_MS = 1000;
const FEW_JOBS = 10;

const asked = new URLSearchParams(location.search).get("job");
let model = null;
let jobs = [];
let lostAt = null;

/* Drawing: at most four times a second, and less often when drawing is slow. A hidden tab keeps its title true. */

let isDrawPlanned = false;
let nextDraw = 0;

function planDraw() {
  if (isDrawPlanned) return;
  isDrawPlanned = true;
  const draw = () => (document.hidden ? drawNow() : requestAnimationFrame(drawNow));
  setTimeout(draw, Math.max(0, nextDraw - performance.now()));
}

function drawNow() {
  const began = performance.now();
  isDrawPlanned = false;
  if (model?.isLoaded) {
    showJob();
    drawHeadline(model);
    setData(byId("picker-glyph"), "kind", jobMark(model.status));
    if (!document.hidden) drawPanels();
  }
  const cost = performance.now() - began;
  nextDraw = performance.now() + Math.max(FRAME_MS, 4 * cost);
}

function drawPanels() {
  drawTiles(model);
  drawFindings(model);
  drawRanks(model.status);
  drawSight(model);
  drawEvents(model);
  drawRun(model);
  drawCharts(model);
}

/* Loading */

let isLoading = false;
let loadsAgain = false;

async function load() {
  if (isLoading) {
    loadsAgain = true;
    return;
  }
  isLoading = true;
  const wasLoaded = model.isLoaded;
  model.beginLoading();
  try {
    ({ jobs } = await get("jobs"));
    if (jobs.some((job) => job.job === model.name)) await loadJob();
    else showUnknown();
    foundAgain();
    drawPicker();
    planDraw();
  } catch {
    lost();
    model.isLoaded = wasLoaded;
    setTimeout(load, RETRY_MS);
  } finally {
    isLoading = false;
  }
  if (loadsAgain) {
    loadsAgain = false;
    load();
  }
}

async function loadJob() {
  const name = model.name;
  const [status, series, { findings }] = await Promise.all([get(jobPath(name)), loadSeries(), get(jobPath(name, "/findings"))]);
  model.replace(status, series, findings);
}

/** The curve, asked for again with fewer points while many attempts make too many of them. */
async function loadSeries() {
  for (let points = FETCH_POINTS; ; points = Math.floor(points / 4)) {
    const { steps } = await get(jobPath(model.name, `/series?points=${points}`));
    if (steps.length <= MAX_ROWS / 2 || points < 50) return steps;
  }
}

function take(kind, data) {
  if (kind === "reload" || kind === "attempt") load();
  else if (kind === "status" && !data.job) return; // the daemon does not know this job
  else if (!model.status && !isLoading) load(); // it does now
  else model.take(kind, data);
  if (model.isLoaded && model.isFull) load();
  planDraw();
}

/* The connection */

function lost() {
  lostAt ??= new Date();
  const time = lostAt.toLocaleTimeString([], { hour12: false });
  const shown = model?.status ? ` What is shown is as of ${time}.` : "";
  setNote(byId("lost"), `Connection to the daemon lost, retrying.${shown}`);
  setData(byId("connection"), "state", "lost");
  setText(byId("connection"), "not connected");
  setData(document.body, "stale", "yes");
}

function foundAgain() {
  lostAt = null;
  setNote(byId("lost"), "");
  setData(byId("connection"), "state", "live");
  setText(byId("connection"), "connected");
  setData(document.body, "stale", "no");
}

/* What the page shows: a job, or a message in its place */

function showJob() {
  byId("message").hidden = true;
  byId("job").hidden = false;
}

function showMessage(key, ...content) {
  const message = byId("message");
  byId("job").hidden = true;
  message.hidden = false;
  if (message.dataset.key === key) return;
  message.dataset.key = key;
  message.replaceChildren(...content);
}

function showEmpty() {
  document.title = "Caboose";
  const code = make("code", "", "monitor = caboose.attach(model, optimizer)\nmonitor.step(loss)  # after every optimizer step");
  showMessage(
    "empty",
    make("h1", "", "No job has reported yet"),
    make("p", "", "Two lines in the training script make it report:"),
    make("pre", "", "", code),
    make("p", "quiet", "If this daemon does not listen on its usual address, set CABOOSE_ENDPOINT to the one it printed when it started. This page shows the job as soon as a rank is heard."),
  );
}

function showUnknown() {
  model.status = null;
  document.title = "Unknown job · Caboose";
  const list = make("ul", "job-links");
  for (const job of jobs.slice(0, 20)) list.append(make("li", "", "", jobLink(job)));
  showMessage(
    `unknown ${jobs.map((job) => job.job)}`,
    make("h1", "", `No job is named “${model.name}”`),
    make("p", "", jobs.length ? "The daemon knows these, the most recently heard of first:" : "The daemon knows no job yet."),
    list,
    make("p", "quiet", "If the job is about to start, leave this page open: it appears when a rank is heard."),
  );
}

/* The job picker */

const jobUrl = (name) => `?job=${encodeURIComponent(name)}`;

function jobLink(job) {
  const link = make("a", "job-link", "", glyph(jobMark(job)), make("span", "job-name"), make("span", "job-more"));
  link.href = jobUrl(job.job);
  updateJobLink(link, job);
  return link;
}

function updateJobLink(link, job) {
  setData(link.children[0], "kind", jobMark(job));
  setText(link.children[1], job.job);
  const health = job.num_open ? `${job.health}, ${whole(job.num_open)} open` : "nothing open";
  setText(link.children[2], `${stateName(jobState(job))} · step ${whole(job.step)} · ${health}`);
}

function drawPicker() {
  byId("picker").hidden = !jobs.length;
  byId("picker-filter-row").hidden = jobs.length <= FEW_JOBS;
  const wanted = byId("picker-filter").value.toLowerCase();
  const shown = jobs.filter((job) => job.job.toLowerCase().includes(wanted)).slice(0, 200);
  keyed(
    byId("picker-list"),
    shown,
    (job) => job.job,
    (job) => make("li", "", "", jobLink(job)),
    (item, job) => {
      updateJobLink(item.firstElementChild, job);
      if (job.job === model?.name) item.firstElementChild.setAttribute("aria-current", "true");
    },
  );
  const current = jobs.find((job) => job.job === model?.name);
  setText(byId("picker-name"), current ? current.job : plural(jobs.length, "job"));
  setData(byId("picker-glyph"), "kind", current ? jobMark(current) : "unknown");
  showNewer(current);
}

/** Another job runs while the shown one, which nobody asked for by name, does not. */
function showNewer(current) {
  const newer = asked === null && current && jobState(current) !== "running" ? jobs.find((job) => jobState(job) === "running") : undefined;
  const notice = byId("newer");
  notice.hidden = !newer;
  if (!newer || notice.dataset.job === newer.job) return;
  notice.dataset.job = newer.job;
  const link = make("a", "", newer.job);
  link.href = jobUrl(newer.job);
  notice.replaceChildren("Another job is running: ", link);
}

function startPicker() {
  const picker = byId("picker");
  byId("picker-filter").addEventListener("input", drawPicker);
  document.addEventListener("click", (event) => {
    if (!picker.contains(event.target)) picker.open = false;
  });
  picker.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !picker.open) return;
    picker.open = false;
    picker.querySelector("summary").focus();
  });
}

/* The start */

async function loadJobs() {
  try {
    ({ jobs } = await get("jobs"));
    if (!model) foundAgain();
    drawPicker();
  } catch {
    if (!model) lost(); // with a model, the stream tells
  }
}

function watch(name) {
  model = new JobModel(name);
  openStream(name, { onOpen: load, onLost: lost, onEvent: take });
}

async function start() {
  startPicker();
  startFindings(planDraw);
  startCharts(planDraw);
  document.addEventListener("visibilitychange", () => {
    isDrawPlanned = false; // a frame planned before the tab was hidden does not come
    planDraw();
  });
  if (asked !== null) watch(asked);
  for (;;) {
    if (!document.hidden || !model) await loadJobs();
    if (!model && lostAt === null) {
      if (jobs.length) {
        watch(jobs[0].job);
        drawPicker();
      } else showEmpty();
    }
    await new Promise((resolve) => setTimeout(resolve, model ? JOBS_MS : RETRY_MS));
  }
}

start();
