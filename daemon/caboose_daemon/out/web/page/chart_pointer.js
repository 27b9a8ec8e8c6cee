/* The pointer on a chart: the text of the nearest point, and a range chosen by dragging. Both are elements above the canvas. */

import { make, setNote } from "./dom.js";
import { scaleFor } from "./chart_paint.js";

/** Pixels from a point within which its text is shown, unless the layout has another distance. */
const NEAR = 40;
const LEAST_DRAG = 6;
const GAP = 12;

/** The point whose text belongs to this place: {x, y, text} in pixels; null if none is near. */
export function nearest({ traces, layout, frame }, left, top) {
  const isByX = layout.hovermode === "x";
  const [low, high] = layout.xaxis.range;
  let found = null, least = layout.hoverdistance ?? NEAR;
  for (const trace of traces) {
    if (!trace.hovertext) continue;
    const up = scaleFor(frame, trace);
    for (let place = 0; place < trace.x.length; place += 1) {
      const [x, y, text] = [trace.x[place], trace.y[place], trace.hovertext[place]];
      if (!text || x === null || y === null || x < low || x > high) continue;
      const [across, high_] = [frame.x.at(x), up.at(y)];
      const distance = isByX ? Math.abs(across - left) : Math.hypot(across - left, high_ - top);
      if (distance < least) [found, least] = [{ x: across, y: high_, text }, distance];
    }
  }
  return found;
}

/** Follows the pointer over a chart; `chartOf` returns what is drawn, `onRange` is called with a dragged range. */
export function startPointer(element, chartOf, { onRange, onReset }) {
  const tip = make("div", "chart-tip"), dot = make("div", "chart-dot"), range = make("div", "chart-range");
  for (const part of [range, dot, tip]) part.hidden = true;
  element.append(range, dot, tip);
  let began = null;

  const placeOf = (event) => {
    const box = element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const hide = () => (tip.hidden = dot.hidden = true);
  const end = () => (began = null, range.hidden = true);
  const held = (left, { frame }) => Math.min(frame.right, Math.max(frame.left, left));

  element.addEventListener("pointermove", (event) => {
    const chart = chartOf();
    if (!chart) return;
    const [left, top] = placeOf(event);
    if (began !== null) showRange(range, chart.frame, began, held(left, chart));
    const point = began === null && chart.layout.hovermode && isOver(chart.frame, left, top) ? nearest(chart, left, top) : null;
    if (point) showPoint(element, tip, dot, point);
    else hide();
  });
  element.addEventListener("pointerleave", hide);
  element.addEventListener("pointerdown", (event) => {
    const chart = chartOf();
    if (!chart || !onRange || event.button !== 0 || event.pointerType === "touch") return;
    const [left, top] = placeOf(event);
    if (!isOver(chart.frame, left, top)) return;
    began = left;
    element.setPointerCapture(event.pointerId);
  });
  element.addEventListener("pointerup", (event) => {
    const chart = chartOf();
    const from = began, to = chart && held(placeOf(event)[0], chart);
    end();
    if (from === null || !chart || Math.abs(to - from) < LEAST_DRAG) return;
    onRange([Math.min(from, to), Math.max(from, to)].map((left) => chart.frame.x.valueAt(left)));
  });
  element.addEventListener("pointercancel", end);
  if (onReset) element.addEventListener("dblclick", onReset);
  return () => (hide(), element.matches(":hover") || end());
}

const isOver = ({ left, top, right, bottom }, x, y) => x >= left - 2 && x <= right + 2 && y >= top - 8 && y <= bottom + 2;

function showRange(range, { top, bottom }, from, to) {
  range.hidden = false;
  Object.assign(range.style, { left: `${Math.min(from, to)}px`, width: `${Math.abs(to - from)}px`, top: `${top}px`, height: `${bottom - top}px` });
}

function showPoint(element, tip, dot, { x, y, text }) {
  const lines = text.split("\n");
  while (tip.children.length > lines.length) tip.lastElementChild.remove();
  lines.forEach((line, place) => setNote(tip.children[place] ?? tip.appendChild(make("span")), line));
  tip.hidden = dot.hidden = false;
  Object.assign(dot.style, { left: `${x}px`, top: `${y}px` });
  const isRight = x + GAP + tip.offsetWidth > element.clientWidth;
  const left = isRight ? Math.max(2, x - GAP - tip.offsetWidth) : x + GAP;
  const top = Math.min(Math.max(0, y - tip.offsetHeight / 2), Math.max(0, element.clientHeight - tip.offsetHeight));
  Object.assign(tip.style, { left: `${left}px`, top: `${top}px` });
}
