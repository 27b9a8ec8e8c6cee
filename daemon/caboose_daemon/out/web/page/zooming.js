/*
 * Which part of the run the charts show, on which axis: all of it, or a range chosen by dragging, buttons or keyboard.
 *
 * A range that includes the newest step when chosen follows the run; any other stays in place. Range and axis are in
 * the address, so a link reopens the view: `x=time&range=1200..3400`, or `range=newest..500` for one that follows.
 */

import { inHash, replaceInHash } from "./address.js";
import { kindsOf, KINDS, placeName } from "./axis.js";
import { fullRange } from "./curves.js";
import { byId, keyed, make, setText } from "./dom.js";

const LEAST_STEPS = 8;
const KEYS = { "+": "in", "=": "in", "-": "out", _: "out", ArrowLeft: "earlier", ArrowRight: "later", 0: "all", Escape: "all" };

let kind = "step";
let chosen = null;
let newestThen = null;
let all = [0, 1];
let newest = 0;
let least = LEAST_STEPS;
let kept = null; // the first and last visible step, while the axis changes
let linked = null; // the range of the address, until the curves are there
let onChange = () => {};

/** Connects the controls; `changed` is called when the range or the axis changes. */
export function startZooming(changed) {
  onChange = changed;
  for (const name of ["in", "out", "earlier", "later", "all"]) byId(`zoom-${name}`).addEventListener("click", () => move(name));
  byId("x-axis").addEventListener("change", (event) => setKind(event.target.value));
  followAddress();
  addEventListener("hashchange", () => {
    followAddress();
    onChange();
  });
}

export const axisKind = () => kind;

/** Handles keys on a focused chart. */
export function listenToKeys(element) {
  element.addEventListener("keydown", (event) => {
    const name = KEYS[event.key];
    if (!name || event.ctrlKey || event.metaKey || event.altKey) return;
    if (name === "all" && chosen === null) return;
    event.preventDefault();
    move(name);
  });
}

/** Offers the axes that the run has numbers for; an unknown one is left. */
export function offerAxes(rows) {
  const kinds = kindsOf(rows);
  if (rows.length && !kinds.includes(kind)) setKind("step");
  const select = byId("x-axis");
  keyed(select, kinds, (name) => name, (name) => Object.assign(make("option", "", KINDS[name]), { value: name }), () => {});
  if (select.value !== kind) select.value = kind;
}

/** The range of the axis to show now; `isAll` if none is chosen. */
export function rangeInSight(rows, others, place) {
  const perStep = rows.length > 1 && kind !== "step" ? unitOf(rows) : 1;
  least = LEAST_STEPS * perStep;
  all = fullRange([...rows, ...others], perStep);
  const last = rows.reduce((x, row) => Math.max(x, row.x), 0);
  if (chosen && newestThen !== null && last > newestThen) {
    const gone = last - newestThen;
    chosen = [chosen[0] + gone, chosen[1] + gone];
    newestThen = last;
  }
  newest = last;
  if (kept) chosen = fitted(kept.map(({ attempt, step }) => place.at(attempt, step)));
  kept = null;
  if (linked && rows.length) restore(linked);
  showState();
  return { sight: chosen ?? all, isAll: chosen === null };
}

/** The usual width of a step on this axis. */
function unitOf(rows) {
  const steps = rows.reduce((sum, row) => sum + row.numSteps, 0);
  return Math.max((rows.at(-1).x - rows[0].x) / Math.max(1, steps), 1e-9);
}

/** Shows this range, or all for null. */
export function zoomTo(range) {
  chosen = range && fitted(range);
  newestThen = chosen && chosen[1] >= newest ? newest : null;
  writeAddress();
  onChange();
}

/** The visible rows before the axis changes stay visible after it. */
export function keepInSight(rows) {
  const seen = chosen && rows.filter((row) => row.x >= chosen[0] && row.x <= chosen[1]);
  visible = seen?.length ? [seen[0], seen.at(-1)] : null;
}

let visible = null;

function setKind(name) {
  if (name === kind) return;
  kept = visible;
  [kind, chosen, newestThen] = [name, null, null];
  replaceInHash("x", name === "step" ? "" : name);
  replaceInHash("range", "");
  onChange();
}

function move(name) {
  const [from, to] = chosen ?? all;
  const span = to - from;
  if (name === "all") zoomTo(null);
  else if (name === "in") zoomTo([from + span / 4, to - span / 4]);
  else if (name === "out") zoomTo([from - span / 2, to + span / 2]);
  else zoomTo(name === "later" ? [from + span / 4, to + span / 4] : [from - span / 4, to - span / 4]);
}

/** A range of the same width within all; null if it would be all of it. */
function fitted([from, to]) {
  const width = Math.max(to - from, least);
  if (width >= all[1] - all[0]) return null;
  const start = Math.min(Math.max((from + to - width) / 2, all[0]), all[1] - width);
  return [start, start + width];
}

/* The address */

function followAddress() {
  const name = inHash("x") || "step";
  if (name in KINDS && name !== kind) [kind, chosen, newestThen, kept] = [name, null, null, null];
  linked = inHash("range") || null;
  if (!linked) [chosen, newestThen] = [null, null];
}

function restore(text) {
  const [from, to] = text.split("..");
  linked = null;
  if (from === "newest" && Number(to) > 0) {
    const end = newest + (all[1] - newest) / 2;
    chosen = fitted([end - Number(to), end]);
    newestThen = chosen && newest;
  } else if (Number.isFinite(Number(from)) && Number.isFinite(Number(to))) {
    chosen = fitted([Number(from), Number(to)]);
    newestThen = null;
  }
}

function writeAddress() {
  const text = ([from, to]) => (newestThen === null ? `${short(from)}..${short(to)}` : `newest..${short(to - from)}`);
  replaceInHash("range", chosen ? text(chosen) : "");
}

const short = (value) => String(Number(value.toPrecision(8)));

function showState() {
  const [from, to] = chosen ?? all;
  const isAll = chosen === null;
  const isOver = { out: isAll, in: to - from <= least, earlier: isAll || from <= all[0], later: isAll || to >= all[1] };
  // A button keeps the focus: it is marked as disabled but not removed.
  for (const [name, over] of Object.entries(isOver)) byId(`zoom-${name}`).setAttribute("aria-disabled", String(over));
  const reset = byId("zoom-all");
  if (isAll && document.activeElement === reset) byId("zoom-in").focus();
  reset.hidden = isAll;
  const range = kind === "step" ? `steps ${placeName(kind, Math.max(0, Math.ceil(from)))} to ${placeName(kind, Math.floor(to))}` : `${placeName(kind, Math.max(0, from))} to ${placeName(kind, to)}`;
  setText(byId("zoom-range"), isAll ? "" : newestThen === null ? range : "the newest steps, following the run");
}
