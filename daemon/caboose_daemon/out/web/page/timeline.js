/*
 * The incidents over the run: a lane for each lead rule, a bar from onset to end for each incident.
 *
 * A bar is a button that opens the incident's card. One of them is in the tab order; the arrow keys move between them.
 * The shape at the onset shows the severity, a tick the detection, a hook an acknowledgement. Open incidents fade out at
 * the right edge, which is now. Attempts follow each other from left to right, each with its own steps, so incidents of
 * different attempts never overlap.
 */

import { byId, glyph, keyed, make, setData, setNote, setText } from "./dom.js";
import { plural, whole } from "./format.js";

const ORDER = ["info", "warning", "critical"];
/** Shares of the width: an attempt's label, and from where labels are right-aligned. */
const LABEL_ROOM = 0.3;
const LAST_BEGIN = 0.58;
let go = () => {};
let current = null;

/** `onChosen` gets the number of the clicked incident. */
export function startTimeline(onChosen) {
  go = onChosen;
  byId("timeline-lanes").addEventListener("keydown", onKey);
}

export function drawTimeline(model) {
  const incidents = [...model.incidents.values()].sort((a, b) => a.onset_step - b.onset_step || a.number - b.number);
  const timeline = byId("timeline");
  timeline.hidden = !incidents.length;
  if (!incidents.length) return;
  const run = layOut(model, incidents);
  if (!incidents.some(({ number }) => number === current)) current = (incidents.find(({ is_open }) => is_open) ?? incidents.at(-1)).number;
  const lanes = lanesOf(incidents);
  setData(timeline, "many", String(lanes.length > 8));
  keyed(
    byId("timeline-lanes"),
    lanes,
    ([rule]) => rule,
    ([rule]) => make("div", "lane", "", make("span", "lane-name", rule), make("div", "lane-bars")),
    (lane, [, inLane]) => keyed(lane.lastElementChild, inLane, ({ number }) => number, createBar, (bar, incident) => updateBar(bar, incident, run)),
  );
  drawRollbacks(model, run);
  drawAxis(run);
  drawKeys(model, incidents);
}

/** The layout of the attempts: { attempts: [{ attempt, first, last, before }], total }; `before` is the number of steps of earlier attempts. */
function layOut(model, incidents) {
  const spans = new Map();
  const reach = (attempt, first, last) => {
    const known = spans.get(attempt);
    if (known) [known.first, known.last] = [Math.min(known.first, first), Math.max(known.last, last)];
    else spans.set(attempt, { attempt, first, last });
  };
  for (const { attempt, step, numSteps } of model.rows) reach(attempt, step - numSteps + 1, step);
  reach(model.status.attempt, model.status.step, model.status.step);
  for (const { attempt, onset_step, opened_step } of incidents) reach(attempt, onset_step, opened_step);
  const attempts = [...spans.values()].sort((a, b) => a.attempt - b.attempt);
  let before = 0;
  for (const span of attempts) {
    span.before = before;
    before += span.last - span.first + 1;
  }
  return { attempts, total: Math.max(1, before - 1) };
}

/** A step's position from left to right, from 0 to 1; a step outside its attempt is at the nearer end. */
function share({ attempts, total }, attempt, step) {
  const span = attempts.find((one) => one.attempt === attempt);
  return (span.before + Math.min(span.last, Math.max(span.first, step)) - span.first) / total;
}

/** Where an incident ends: within its attempt, or at its end if the next attempt closed it. */
function endOf(incident, run) {
  if (incident.is_open) return 1;
  const isWithin = incident.closed_step >= incident.onset_step;
  return share(run, incident.attempt, isWithin ? incident.closed_step : Infinity);
}

/** Rules with their incidents: those with an open one first, then by the latest. */
function lanesOf(incidents) {
  const lanes = new Map();
  for (const incident of incidents) lanes.set(incident.rule, [...(lanes.get(incident.rule) ?? []), incident]);
  const weight = (inLane) => Math.max(...inLane.map(({ is_open, severity }) => (is_open ? 1 + ORDER.indexOf(severity) : 0)));
  const newest = (inLane) => Math.max(...inLane.map(({ number }) => number));
  return [...lanes].sort(([, a], [, b]) => weight(b) - weight(a) || newest(b) - newest(a));
}

const percentOf = (value) => `${(100 * value).toFixed(2)}%`;

function createBar({ number }) {
  const bar = make("button", "bar-mark", "", make("i", "bar-line"), make("i", "bar-tick"), glyph("info"), make("i", "bar-hand"));
  bar.type = "button";
  bar.addEventListener("click", () => go(number));
  for (const coming of ["focus", "pointerenter"]) bar.addEventListener(coming, () => describe(bar));
  bar.addEventListener("focus", () => (current = number));
  return bar;
}

/** The text of the focused bar, below the lanes. */
function describe(bar) {
  setText(byId("timeline-shown"), bar.getAttribute("aria-label"));
  setData(byId("timeline-shown"), "of", bar.dataset.key);
}

function updateBar(bar, incident, run) {
  const from = share(run, incident.attempt, incident.onset_step);
  const to = endOf(incident, run);
  const seen = share(run, incident.attempt, incident.opened_step);
  setStyle(bar, "--from", percentOf(from));
  setStyle(bar, "--wide", percentOf(Math.max(0, to - from)));
  setStyle(bar, "--seen", (to > from ? Math.min(1, Math.max(0, (seen - from) / (to - from))) : 0).toFixed(4));
  const severity = incident.is_open ? incident.severity : incident.worst;
  setData(bar, "severity", severity);
  setData(bar, "open", String(incident.is_open));
  setData(bar.children[2], "kind", severity);
  bar.children[3].hidden = !incident.acknowledged;
  bar.tabIndex = incident.number === current ? 0 : -1;
  const label = labelOf(incident);
  if (bar.getAttribute("aria-label") !== label) bar.setAttribute("aria-label", label);
  const shown = byId("timeline-shown");
  if (shown.dataset.of === String(incident.number)) setText(shown, label);
}

function setStyle(element, name, value) {
  if (element.style.getPropertyValue(name) !== value) element.style.setProperty(name, value);
}

function labelOf(incident) {
  const end = incident.is_open ? "open" : `to ${whole(incident.closed_step)}`;
  const parts = [`#${incident.number} ${incident.rule}`, incident.worst, `${incident.attempt > 1 ? `attempt ${incident.attempt}, ` : ""}from step ${whole(incident.onset_step)} ${end}`, `detected at ${whole(incident.opened_step)}`];
  if (incident.acknowledged) parts.push(`acknowledged: ${incident.acknowledged.reason}`);
  return parts.join(", ");
}

/* Left and right move through the incidents by onset, up and down between lanes. */

function onKey(event) {
  const bars = [...byId("timeline-lanes").querySelectorAll(".bar-mark")];
  const here = document.activeElement;
  if (!bars.includes(here) || event.ctrlKey || event.altKey || event.metaKey) return;
  const to = target(event.key, bars, here);
  if (!to) return;
  event.preventDefault();
  here.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}

const onset = (bar) => parseFloat(bar.style.getPropertyValue("--from"));
const numberOf = (bar) => Number(bar.dataset.key);

function target(key, bars, here) {
  const inTime = [...bars].sort((a, b) => onset(a) - onset(b) || numberOf(a) - numberOf(b));
  const at = inTime.indexOf(here);
  if (key === "ArrowRight") return inTime[Math.min(at + 1, inTime.length - 1)];
  if (key === "ArrowLeft") return inTime[Math.max(at - 1, 0)];
  if (key === "Home") return inTime[0];
  if (key === "End") return inTime.at(-1);
  if (key !== "ArrowUp" && key !== "ArrowDown") return null;
  const lane = here.closest(".lane");
  const next = key === "ArrowDown" ? lane.nextElementSibling : lane.previousElementSibling;
  const inLane = [...(next?.querySelectorAll(".bar-mark") ?? [])];
  return inLane.sort((a, b) => Math.abs(onset(a) - onset(here)) - Math.abs(onset(b) - onset(here)))[0] ?? here;
}

/* Rollbacks, the step axis, and the legend */

function drawRollbacks(model, run) {
  const rollbacks = model.rollbacks();
  const ended = new Set(rollbacks.map(({ attempt }) => attempt + 1));
  // A restart is a line without an arrow.
  const starts = run.attempts.slice(1).filter(({ attempt }) => !ended.has(attempt)).map((span) => ({ ...span, number: `attempt ${span.attempt}`, isStart: true }));
  keyed(
    byId("timeline-rollbacks"),
    [...rollbacks.filter(({ attempt }) => run.attempts.some((span) => span.attempt === attempt)), ...starts],
    ({ number }) => number,
    ({ isStart }) => make("i", isStart ? "attempt-mark" : "rollback-mark"),
    (mark, item) => {
      const { attempt, boundary, step, target: to, isStart } = item;
      setStyle(mark, "--from", percentOf(isStart ? share(run, attempt, item.first) : share(run, attempt, boundary ?? step)));
      mark.title = isStart ? `attempt ${attempt}` : `rolled back at step ${whole(boundary ?? step)} to ${whole(to)}`;
    },
  );
}

/** The first and the last step, and between them the middle one or the starts of later attempts. */
function drawAxis(run) {
  const { attempts, total } = run;
  const [first, last] = [attempts[0], attempts.at(-1)];
  const labels = [{ key: "first", at: 0, text: whole(first.first) }];
  if (attempts.length === 1) labels.push({ key: "middle", at: 0.5, text: whole(Math.round((first.first + first.last) / 2)) });
  let free = 0.08;
  for (const { attempt, first: step, before } of attempts.slice(1)) {
    const at = before / total;
    const isBefore = at > LAST_BEGIN;
    if (at - (isBefore ? LABEL_ROOM : 0) < free || at > 1 - LABEL_ROOM / 3) continue;
    labels.push({ key: `attempt ${attempt}`, at, text: `attempt ${attempt}: ${whole(step)}`, side: isBefore ? "before" : "after" });
    free = isBefore ? 1 : at + LABEL_ROOM;
  }
  labels.push({ key: "last", at: 1, text: whole(last.last) });
  keyed(byId("timeline-axis"), labels, ({ key }) => key, () => make("span"), (label, { at, text, side }) => {
    setStyle(label, "--at", at.toFixed(4));
    setData(label, "side", side ?? "");
    setText(label, text);
  });
}

function drawKeys(model, incidents) {
  const isThere = {
    critical: incidents.some(({ worst }) => worst === "critical"),
    warning: incidents.some(({ worst }) => worst === "warning"),
    detected: true,
    open: incidents.some(({ is_open }) => is_open),
    hand: incidents.some(({ acknowledged }) => acknowledged),
    rollback: model.rollbacks().length > 0,
  };
  for (const key of byId("timeline-keys").children) key.hidden = !isThere[key.dataset.kind];
  setNote(byId("timeline-many"), incidents.length > 60 ? `${plural(incidents.length, "incident")} in the run` : "");
}
