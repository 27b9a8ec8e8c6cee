/*
 * A chart in an element: a canvas with what `chart_paint.js` makes of traces and a layout, redrawn at every size.
 *
 * The element keeps the description as `data` and `layout`, for an export and for tests. It needs no eval and no inline
 * script, as the page's content policy asks for.
 */

import { frameOf, paint, roomy } from "./chart_paint.js";
import { startPointer } from "./chart_pointer.js";
import { make, setText } from "./dom.js";

const charts = new WeakMap();
const sizes = new ResizeObserver((changes) => changes.forEach(({ target }) => repaint(target)));
const TITLE_ROOM = 28;
const PICTURE_SCALE = 2;

/** Draws a chart, or draws it again; `actions` are called with the range that was dragged, and for a double click. */
export function showChart(element, traces, layout, actions = {}) {
  [element.data, element.layout] = [traces, layout];
  if (!charts.has(element)) {
    const canvas = make("canvas");
    canvas.setAttribute("aria-hidden", "true"); // the element has a label
    const words = make("p", "unseen");
    element.prepend(canvas, words);
    element.classList.add("drawn");
    charts.set(element, { canvas, words, frame: null });
    charts.get(element).forget = startPointer(element, () => shown(element), actions);
    sizes.observe(element);
  }
  setText(charts.get(element).words, wordsOf(traces, layout));
  repaint(element);
}

/** What is written on the chart, for a screen reader: the numbers of incidents, attempts, phases. */
function wordsOf(traces, { annotations = [] }) {
  return [...traces.flatMap(({ text = [] }) => text), ...annotations.map(({ text }) => text)].map((text) => text.trim()).filter(Boolean).join(", ");
}

function shown(element) {
  const { frame } = charts.get(element);
  return frame && { frame, traces: element.data, layout: element.layout };
}

function repaint(element) {
  const chart = charts.get(element);
  const { clientWidth: width, clientHeight: height } = element;
  if (!width || !height) return; // not on the screen; the observer calls again
  const pen = penOf(chart.canvas, width, height, Math.max(1, window.devicePixelRatio));
  chart.frame = frameOf(roomy(pen, element.layout), width, height);
  paint(pen, element.data, element.layout, chart.frame);
}

/** A cleared canvas of this size in CSS pixels. */
function penOf(canvas, width, height, scale) {
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  return pen;
}

/** The chart as a PNG picture; see `pictureWith`. */
export function pictureOf(element, words) {
  const { clientWidth: width, clientHeight: height, data, layout } = element;
  return pictureWith(words, width, height, (pen) => paint(pen, data, layout, frameOf(roomy(pen, layout), width, height)));
}

/** The address of a PNG picture with a title, on paper of this colour; `fill` paints below the title. */
export function pictureWith({ title, paper, ink }, width, height, fill) {
  const canvas = make("canvas");
  const pen = penOf(canvas, width, height + TITLE_ROOM, PICTURE_SCALE);
  pen.fillStyle = paper;
  pen.fillRect(0, 0, width, height + TITLE_ROOM);
  [pen.fillStyle, pen.font, pen.textBaseline] = [ink, "600 13px system-ui, sans-serif", "middle"];
  pen.fillText(title, 10, TITLE_ROOM / 2 + 2, width - 20);
  pen.translate(0, TITLE_ROOM);
  fill(pen);
  return canvas.toDataURL("image/png");
}
