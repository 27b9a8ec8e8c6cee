/*
 * All jobs at once: one row each with its health, loss, speed and ranks; the worst first, then the most recently seen.
 *
 * Rows follow the stream. The order does not while a reader hovers over a row or has focused one: rows then stay in
 * place. A row's curve is requested when it becomes visible, two at a time, and then grows with the stream.
 */

import { ApiError, get, jobPath } from "./api.js";
import { byId, glyph, keyed, make, setData, setNote, setText } from "./dom.js";
import { decimal, duration, numeric, plural, stateName, whole } from "./format.js";
import { jobMark, jobState } from "./panels.js";
import { Sparklines } from "./sparkline.js";

const MOST_JOBS = 500;
const ORDER = ["critical", "warning", "unknown", "info", "ok"];
const ROLLBACK = { off: "off", advise: "advises", ready: "ready", sent: "command sent", checking: "checking", exhausted: "exhausted" };
const COLUMNS = ["Job", "Health", "Loss", "Step", "Step time", "Ranks", "Rollback", "Last seen"];

/** All jobs, from the first status of a stream and its changes. */
export class JobList {
  constructor() {
    this.jobs = new Map();
    this.isKnown = false;
    this.now = 0;
  }

  take({ is_whole, now, jobs, gone = [] }) {
    if (is_whole) this.jobs.clear();
    for (const name of gone) this.jobs.delete(name);
    for (const job of jobs) this.jobs.set(job.job, { ...this.jobs.get(job.job), ...job });
    this.now = now;
    this.isKnown = true;
    for (const job of this.jobs.values()) job.silent_seconds = job.heard === null ? 0 : Math.max(0, now - job.heard);
  }

  /** The worst first, then the most recently seen, then by name. */
  sorted() {
    const rank = (job) => ORDER.indexOf(jobMark(job));
    const isOver = (job) => ["ended", "cancelled", "known"].includes(jobState(job));
    return [...this.jobs.values()].sort(
      (a, b) => rank(a) - rank(b) || isOver(a) - isOver(b) || (b.heard ?? Infinity) - (a.heard ?? Infinity) || b.num_open - a.num_open || (a.job < b.job ? -1 : 1),
    );
  }
}

const sparklines = new Sparklines((name) => loadCurve(name));
let redraw = () => {};
let order = [];
let isPointed = false;

export function startOverview(draw) {
  redraw = draw;
  const list = byId("jobs-list");
  byId("jobs-filter").addEventListener("input", () => {
    order = [];
    redraw();
  });
  list.addEventListener("pointerenter", () => (isPointed = true));
  list.addEventListener("pointerleave", () => (isPointed = false));
  byId("overview").addEventListener("keydown", onKey);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || byId("overview").hidden || event.target.matches("input, select, textarea")) return;
    event.preventDefault();
    byId("jobs-filter").focus();
  });
}

/** Up and down move between jobs, also from the filter. */
function onKey(event) {
  const links = [...byId("jobs-list").querySelectorAll(".job-open")];
  const at = links.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
  const isTyping = event.target.matches("input");
  if (to === undefined || (isTyping && event.key !== "ArrowDown")) return;
  event.preventDefault();
  if (to < 0) byId("jobs-filter").focus();
  else links[Math.min(to, links.length - 1)]?.focus();
}

/** The loss of a job over all its steps, in few points. */
async function loadCurve(name) {
  try {
    const { steps } = await get(jobPath(name, "/series?points=60"));
    const attempt = steps.at(-1)?.attempt;
    return steps.filter((row) => row.attempt === attempt).map((row) => [row.step, numeric(row.loss)]);
  } catch (problem) {
    if (problem instanceof ApiError) return null;
    throw problem;
  }
}

export function drawOverview(jobs) {
  const wanted = byId("jobs-filter").value.trim().toLowerCase();
  const found = inOrder(jobs.sorted()).filter((job) => isLike(job, wanted));
  const shown = found.slice(0, MOST_JOBS);
  document.title = title(jobs);
  setText(byId("jobs-hint"), summary([...jobs.jobs.values()]));
  keyed(byId("jobs-list"), shown, (job) => job.job, create, update);
  setNote(byId("jobs-none"), shown.length ? "" : `No job matches “${wanted}”.`);
  setNote(byId("jobs-more"), shown.length < found.length ? `${whole(found.length - shown.length)} more: use the filter.` : "");
}

/** Rows keep their order while a reader uses them; new jobs are added at the end. */
function inOrder(sorted) {
  const isHeld = isPointed || byId("jobs-list").contains(document.activeElement);
  if (!isHeld || !order.length) order = sorted.map((job) => job.job);
  const place = new Map(order.map((name, index) => [name, index]));
  const at = (job) => place.get(job.job) ?? Infinity;
  return isHeld ? [...sorted].sort((a, b) => (at(a) === at(b) ? 0 : at(a) - at(b))) : sorted;
}

const isLike = (job, wanted) => [job.job, stateName(jobState(job)), job.health, job.worst_rule ?? ""].some((text) => text.toLowerCase().includes(wanted));

function count(jobs, isSo) {
  return jobs.reduce((sum, job) => sum + (isSo(job) ? 1 : 0), 0);
}

function summary(jobs) {
  const parts = [`${whole(count(jobs, (job) => jobState(job) === "running"))} running`];
  for (const mark of ["critical", "warning"]) {
    const number = count(jobs, (job) => jobMark(job) === mark);
    if (number) parts.push(mark === "warning" ? plural(number, mark) : `${whole(number)} ${mark}`);
  }
  return `${plural(jobs.length, "job")}: ${parts.join(", ")}`;
}

function title(jobs) {
  const marks = [...jobs.jobs.values()].map(jobMark);
  const badge = marks.includes("critical") ? "✖ " : marks.includes("warning") ? "▲ " : "";
  return `${badge}${plural(marks.length, "job")} · Caboose`;
}

/* A row. The name is the link; it covers the whole row. */

function create(job) {
  const link = make("a", "job-open", job.job);
  link.href = `?job=${encodeURIComponent(job.job)}`;
  const loss = make("b");
  const cells = {
    name: [link],
    health: [glyph("unknown"), make("span", "words"), make("small")],
    loss: [loss, sparklines.make(job.job)],
    step: [make("span")],
    speed: [make("span")],
    ranks: [make("span")],
    rollback: [make("span")],
    heard: [make("span")],
  };
  const row = make("div", "job-row");
  row.setAttribute("role", "row");
  Object.entries(cells).forEach(([kind, children], index) => {
    const cell = make("div", `cell of-${kind}`, "", ...children);
    cell.setAttribute("role", index ? "cell" : "rowheader");
    cell.dataset.name = COLUMNS[index];
    row.append(cell);
  });
  return row;
}

function update(row, job) {
  const [, health, loss, step, speed, ranks, rollback, heard] = row.children;
  const state = jobState(job);
  const mark = jobMark(job);
  setData(row, "kind", mark);
  setData(row, "state", state);
  const [sign, words, why] = health.children;
  setData(sign, "kind", mark);
  setText(words, healthWords(job, state));
  setText(why, troubleWords(job));
  setText(loss.firstElementChild, decimal(job.loss));
  setData(loss.firstElementChild, "bad", String(typeof job.loss === "string"));
  sparklines.update(job.job, job.attempt, job.step, numeric(job.loss));
  setText(step.firstElementChild, whole(job.step));
  setText(speed.firstElementChild, duration(job.step_seconds));
  setText(ranks.firstElementChild, `${whole(job.num_live)} of ${whole(job.world)}`);
  setData(ranks, "some", String(state === "running" && job.num_live < job.world));
  setText(rollback.firstElementChild, job.rollback_mode === "off" ? "off" : `${job.rollback_mode}${job.rollback_mode === "auto" ? `, ${ROLLBACK[job.rollback] ?? job.rollback}` : ""}`);
  setText(heard.firstElementChild, job.silent_seconds ? `${duration(job.silent_seconds)} ago` : "just now");
}

function healthWords(job, state) {
  if (job.num_open) return state === "running" ? job.health : `${job.health}, ${stateName(state)}`;
  if (job.ending && job.health !== "ok") return `${job.health === "info" ? "acknowledged" : job.health}, ${stateName(state)}`;
  return { running: "nothing wrong", known: "no report since the restart" }[state] ?? stateName(state);
}

/** What a run ended with: the rules and since when, or why it ended. */
function endingWords({ how, standing, unresolved }) {
  if (standing === "healthy") return how.split(": ").slice(1).join(": ");
  return unresolved.map(({ rule, onset_step }) => `${rule} since step ${whole(onset_step)}`).join(", ");
}

function troubleWords(job) {
  if (job.ending) return endingWords(job.ending);
  if (!job.num_open) return "";
  return job.num_open > 1 ? `${job.worst_rule} and ${whole(job.num_open - 1)} more` : job.worst_rule;
}
