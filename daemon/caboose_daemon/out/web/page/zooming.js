/*
 * Which steps the charts show: all of them, or a range chosen by dragging, buttons or keyboard.
 *
 * A range that includes the newest step when chosen follows the run; any other stays in place.
 */

import { stepRange } from "./curves.js";
import { byId, setText } from "./dom.js";
import { whole } from "./format.js";

const LEAST_STEPS = 8;
const KEYS = { "+": "in", "=": "in", "-": "out", _: "out", ArrowLeft: "earlier", ArrowRight: "later", 0: "all", Escape: "all" };

let chosen = null;
let newestThen = null;
let all = [0, 1];
let newest = 0;
let onChange = () => {};

/** Connects the buttons; `changed` is called when the range changes. */
export function startZooming(changed) {
  onChange = changed;
  for (const name of ["in", "out", "earlier", "later", "all"]) byId(`zoom-${name}`).addEventListener("click", () => move(name));
}

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

/** The steps to show now; `isAll` if no range is chosen. */
export function stepsInSight(rows) {
  all = stepRange(rows);
  newest = rows.reduce((step, row) => Math.max(step, row.step), 0);
  if (chosen && newestThen !== null && newest > newestThen) {
    const gone = newest - newestThen;
    chosen = [chosen[0] + gone, chosen[1] + gone];
    newestThen = newest;
  }
  showState();
  return { steps: chosen ?? all, isAll: chosen === null };
}

/** Shows these steps, or all for null. */
export function zoomTo(steps) {
  chosen = steps && fitted(steps);
  newestThen = chosen && chosen[1] >= newest ? newest : null;
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

/** A range of the same width within all steps; null if it would be all of them. */
function fitted([from, to]) {
  const width = Math.max(to - from, LEAST_STEPS);
  if (width >= all[1] - all[0]) return null;
  const start = Math.min(Math.max((from + to - width) / 2, all[0]), all[1] - width);
  return [start, start + width];
}

function showState() {
  const [from, to] = chosen ?? all;
  const isAll = chosen === null;
  const isOver = { out: isAll, in: to - from <= LEAST_STEPS, earlier: isAll || from <= all[0], later: isAll || to >= all[1] };
  // A button keeps the focus: it is marked as disabled but not removed.
  for (const [name, over] of Object.entries(isOver)) byId(`zoom-${name}`).setAttribute("aria-disabled", String(over));
  const reset = byId("zoom-all");
  if (isAll && document.activeElement === reset) byId("zoom-in").focus();
  reset.hidden = isAll;
  const range = `steps ${whole(Math.max(0, Math.ceil(from)))} to ${whole(Math.floor(to))}`;
  setText(byId("zoom-range"), isAll ? "" : newestThen === null ? range : "the newest steps, following the run");
}
