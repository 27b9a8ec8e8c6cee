/*
 * The live page: shows all jobs, or loads one and follows its stream, and draws at a bounded pace.
 *
 * Every (re)connection of the stream loads everything again, so a restarted daemon, a sleeping laptop or a tab that was
 * hidden for a while leaves no gap. Updates that arrive during loading are applied on top of the answer.
 * A hidden tab without a stream requests the list of jobs now and then, so that its title stays current.
 */

import { get, jobPath, openStream } from "./api.js";
import { offerRuns } from "./compare.js";
import { drawCharts, startCharts } from "./charts.js";
import { drawCheckpoints, startCheckpoints } from "./checkpoints.js";
import { byId, glyph, keyed, make, milestone, setData, setNote, setText } from "./dom.js";
import { drawFindings } from "./findings.js";
import { plural, stateName, whole } from "./format.js";
import { drawIncidents, startIncidents } from "./incidents.js";
import { drawLayers, noticeSample, startLayers } from "./layers.js";
import { FETCH_POINTS, JobModel } from "./model.js";
import { drawOverview, JobList, startOverview } from "./overview.js";
import { drawEvents, drawHeadline, drawRun, drawSight, drawTiles, jobMark, jobState, setTitle } from "./panels.js";
import { drawRanks, startRanks } from "./ranks.js";
import { drawRollback, startRollback } from "./rollback.js";

const FRAME_MS = 150;
const JOBS_MS = 4000;
const RETRY_MS = 1000;
const PAUSED_MS = 20000;
const FEW_JOBS = 10;

const query = new URLSearchParams(location.search);
const asked = query.get("job");
const wantsAll = asked === null && query.has("jobs");
let model = null;
let overview = null;
let jobs = [];
let lostAt = null;
let firstJobs = null;
let isPaused = false;

/*
 * Drawing: at most six times a second, and less often if drawing is slow: it takes a fifth of the time at most. A hidden
 * tab keeps its title current.
 */

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
  if (model?.isReady) {
    showJob();
    drawHeadline(model);
    setData(byId("picker-glyph"), "kind", jobMark(model.status));
    if (!document.hidden) drawPanels();
  }
  if (overview?.isKnown) showOverview();
  const cost = performance.now() - began;
  nextDraw = performance.now() + Math.max(FRAME_MS, 4 * cost);
}

function drawPanels() {
  drawTiles(model);
  drawIncidents(model);
  drawRollback(model);
  drawCheckpoints(model);
  drawFindings(model);
  drawRanks(model);
  drawSight(model);
  drawEvents(model);
  drawRun(model);
  milestone("words");
  drawCharts(model);
  drawLayers(model);
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
    await firstJobs;
    // A job that was known need not wait for the list; an unknown one must not be requested.
    const [list, isFound] = await Promise.all([get("jobs"), isListed() && loadJob()]);
    ({ jobs } = list);
    if (!isFound && !(isListed() && (await loadJob()))) showUnknown();
    foundAgain();
    drawPicker();
    planDraw();
  } catch {
    lost();
    model.isLoaded ||= wasLoaded;
    setTimeout(load, RETRY_MS);
  } finally {
    isLoading = false;
  }
  if (loadsAgain) {
    loadsAgain = false;
    load();
  }
}

const isListed = () => jobs.some((job) => job.job === model.name);

/** Loads the job; returns whether the daemon knows it. Text and numbers are shown before the curves. */
async function loadJob() {
  const name = model.name;
  const lists = ["findings", "incidents", "decisions", "ledger"];
  try {
    const curves = get(jobPath(name, `/series?points=${FETCH_POINTS}`));
    curves.catch(() => {}); // awaited below, unless something else failed
    const answers = await Promise.all(lists.map((list) => get(jobPath(name, `/${list}`))));
    const [{ findings }, { incidents }, { decisions }, { entries }] = answers;
    noticeSample();
    model.replace({ findings, incidents, decisions, entries });
    planDraw();
    const { steps, named } = await curves;
    model.replaceCurves(steps, named);
    return true;
  } catch (problem) {
    if (problem.status === 404) return false;
    throw problem;
  }
}

function take(kind, data) {
  if (kind === "reload" || kind === "attempt") load();
  else if (kind === "sample") noticeSample();
  else if (kind === "status" && !data.job) return; // the daemon does not know this job
  else model.take(kind, data);
  if (!model.isLoaded && !isLoading) load(); // it does now
  if (model.isLoaded && model.isFull) load();
  planDraw();
}

/* The connection */

function lost() {
  lostAt ??= new Date();
  const time = lostAt.toLocaleTimeString([], { hour12: false });
  const shown = model?.status || overview?.isKnown ? ` Data shown is from ${time}.` : "";
  setNote(byId("lost"), `Connection to the daemon lost, retrying.${shown}`);
  setData(byId("connection"), "state", "lost");
  setText(byId("connection"), "not connected");
  setData(document.body, "stale", "yes");
}

function paused() {
  isPaused = true;
  lostAt = null;
  setNote(byId("lost"), "");
  setData(byId("connection"), "state", "paused");
  setText(byId("connection"), "paused while hidden");
}

function opened() {
  isPaused = false;
  if (model) load();
}

function foundAgain() {
  if (isPaused) return; // an answer that was already on its way
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

function showOverview() {
  if (!overview.jobs.size) {
    showEmpty();
    return;
  }
  byId("message").hidden = true;
  byId("overview").hidden = false;
  drawOverview(overview);
}

function showMessage(key, ...content) {
  const message = byId("message");
  byId("job").hidden = true;
  byId("overview").hidden = true;
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
    make("p", "", "Add two lines to the training script:"),
    make("pre", "", "", code),
    make("p", "quiet", "If this daemon does not use its default address, set CABOOSE_ENDPOINT to the one it printed at start. The job appears here as soon as a rank reports."),
  );
}

function showUnknown() {
  model.status = null;
  document.title = "Unknown job · Caboose";
  const list = make("ul", "job-links");
  for (const job of jobs.slice(0, 20)) list.append(make("li", "", "", jobLink(job)));
  showMessage(
    `unknown ${jobs.map((job) => job.job)}`,
    make("h1", "", `Unknown job “${model.name}”`),
    make("p", "", jobs.length ? "Known jobs, the most recently seen first:" : "The daemon knows no job yet."),
    list,
    make("p", "quiet", "If the job is about to start, leave this page open: it appears when a rank reports."),
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
  const health = job.num_open ? `${job.health}, ${whole(job.num_open)} open` : "no open incident";
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
  const marks = current ? [jobMark(current)] : jobs.map(jobMark);
  setData(byId("picker-glyph"), "kind", ["critical", "warning", "unknown", "info", "ok"].find((mark) => marks.includes(mark)) ?? "unknown");
  showNewer(current);
  if (model) offerRuns(jobs, model.name);
}

/** Another job runs while the shown one, which was not chosen by name, does not. */
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
    if (!model && !overview) foundAgain();
    drawPicker();
    const shown = isPaused && model && jobs.find((job) => job.job === model.name);
    if (shown) setTitle(shown, jobMark(shown));
  } catch {
    if (!model && !overview) lost(); // else the stream reports it
  }
}

/** Follows all jobs; every connection begins with all of them. */
function watchAll() {
  overview = new JobList();
  openStream(null, {
    onOpen: opened,
    onLost: lost,
    onPause: paused,
    onEvent: (kind, data) => {
      foundAgain();
      if (kind === "status") overview.take(data);
      planDraw();
    },
  });
}

function watch(name) {
  model = new JobModel(name);
  openStream(name, { onOpen: opened, onLost: lost, onPause: paused, onEvent: take });
}

async function start() {
  startPicker();
  startIncidents(planDraw);
  startRollback(planDraw);
  startCheckpoints(planDraw);
  await startRanks();
  startCharts(planDraw);
  startLayers(planDraw);
  document.addEventListener("visibilitychange", () => {
    isDrawPlanned = false; // a frame planned before the tab was hidden is never drawn
    planDraw();
  });
  startOverview(planDraw);
  firstJobs = loadJobs();
  if (asked !== null) watch(asked);
  else if (wantsAll) watchAll();
  await firstJobs;
  for (let isFirst = true; ; isFirst = false) {
    if (!isFirst && (!document.hidden || isPaused || !(model || overview))) await loadJobs();
    if (!model && !overview && lostAt === null) {
      if (jobs.length > 1) watchAll();
      else if (jobs.length) watch(jobs[0].job);
      else showEmpty();
      drawPicker();
    }
    const pace = isPaused && document.hidden ? PAUSED_MS : model || overview ? JOBS_MS : RETRY_MS;
    await new Promise((resolve) => setTimeout(resolve, pace));
  }
}

start();
