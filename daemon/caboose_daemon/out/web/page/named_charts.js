/*
 * The charts of the user's metrics and validations, and the lines of parameter groups and of the validation loss.
 *
 * A metric and a validation of one name share a chart. The validation loss is on the chart of the loss.
 */

import { namedRunLines } from "./compare.js";
import { byFate, segments, spikes, valueRange } from "./curves.js";
import { byId, keyed, make, setData, setNote, setText } from "./dom.js";
import { compact, decimal, plural } from "./format.js";
import { bandTrace, baseLayout, colours, draw, lineTraces, PART_COLOURS, partColour, setScale, spikeTraces, stepName, table } from "./plot.js";
import { smoothed } from "./smoothing.js";

const MOST_CHARTS = 8;
/** From here on a number is written with a unit, such as 323 K. */
const LARGE = 1e4;
const mean = (row) => row.mean;
const has = (row) => row.mean !== null;
const pauses = (row) => row.mean === null && !row.numBad;
let isWhole = false;
let onChange = () => {};

export function startNamedCharts(changed) {
  onChange = changed;
  byId("metric-filter").addEventListener("input", onChange);
  byId("metrics-more").addEventListener("click", () => {
    isWhole = !isWhole;
    onChange();
  });
}

/** The validation loss as lines, and its range; null if there is none. */
export function validationLoss(scene, isLog) {
  const [curve] = scene.named("validation").filter(({ name }) => name === "loss");
  if (!curve) return null;
  const isDrawn = (row) => has(row) && (!isLog || row.mean > 0);
  const traces = byFate(curve.rows, scene.current, scene.rollbacks).map(([fate, part]) => validationTrace(segments(part, isDrawn, pauses), "validation loss", fate));
  return { traces, range: valueRange(curve.rows, scene.sight, mean, mean, isLog) };
}

function validationTrace(parts, label, fate) {
  const rows = parts.flatMap((part, place) => (place ? [null, ...part] : part));
  const colour = fate === "current" ? colours.ok : colours.earlier;
  return {
    x: rows.map((row) => row?.x ?? null), y: rows.map((row) => row?.mean ?? null), name: `${label}, ${fate}`, mode: "lines+markers",
    line: { color: colour, width: 1.6 }, marker: { symbol: "diamond", size: rows.length > 80 ? 3 : 6, color: colour },
    hovertext: rows.map((row) => (row ? `${stepName(row, fate)}\n${label} ${decimal(row.mean)}` : "")),
  };
}

/** One thin line for each parameter group, their range, and their names for a legend; null with one group. */
export function groupLines(scene, source, label, isLog) {
  const curves = scene.named(source);
  if (!curves.length) return null;
  const isDrawn = (row) => has(row) && (!isLog || row.mean > 0);
  const traces = curves.flatMap(({ name, rows }, number) => byFate(rows, scene.current, scene.rollbacks).flatMap(([fate, part]) => {
    const hover = (row) => `${name}\n${stepName(row, fate)}\n${label} ${decimal(row.mean)}`;
    const lines = lineTraces(segments(part, isDrawn, pauses), mean, hover, fate, null, partColour(number + 1));
    return lines.map((trace) => ({ ...trace, meta: name, name: `group ${name}`, line: { ...trace.line, width: 1.3 } }));
  }));
  const rows = curves.flatMap((curve) => curve.rows);
  return { traces, range: valueRange(rows, scene.sight, (row) => row.low, (row) => row.high, isLog), names: curves.map(({ name }) => name) };
}

/** The names and colours of parameter groups below a chart. */
export function drawGroupNames(id, groups, whole = null) {
  const list = byId(id);
  list.hidden = !groups;
  const entries = (groups?.names ?? []).map((name, number) => ({ name, number: number + 1 }));
  if (whole) entries.unshift({ name: whole, number: 0 });
  keyed(list, groups ? entries : [], ({ number }) => number, ({ name }) => make("li", "", "", make("span", "key"), name), (item, { number }) => setData(item.firstElementChild, "kind", `part${number % PART_COLOURS}`));
}

/** The two ranges as one; either may be null. */
export const widest = (one, other) => (one && other ? [Math.min(one[0], other[0]), Math.max(one[1], other[1])] : one ?? other);

/** All charts of metrics and validations, in the order of their names. */
export function drawNamedCharts(scene) {
  const byName = new Map();
  for (const curve of scene.named("metric", "validation")) {
    if (curve.source === "validation" && curve.name === "loss") continue;
    byName.set(curve.name, [...(byName.get(curve.name) ?? []), curve]);
  }
  const wanted = byId("metric-filter").value.trim().toLowerCase();
  const names = [...byName.keys()].sort();
  const found = names.filter((name) => name.toLowerCase().includes(wanted));
  const shown = found.slice(0, isWhole ? undefined : MOST_CHARTS);
  byId("metrics").hidden = !names.length;
  byId("metric-filter-row").hidden = names.length <= MOST_CHARTS / 2;
  setText(byId("metrics-hint"), plural(names.length, "name"));
  setNote(byId("metrics-none"), names.length && !found.length ? "No metric has such a name." : "");
  const more = byId("metrics-more");
  more.hidden = found.length <= MOST_CHARTS;
  setText(more, isWhole ? "Show fewer" : `Show all ${found.length}`);
  keyed(byId("metric-charts"), shown, (name) => name, createChart, () => {});
  for (const name of shown) drawOne(scene, name, byName.get(name));
}

const chartId = (name) => `metric-${name}-chart`;

function createChart(name) {
  const chart = make("div", "chart");
  chart.id = chartId(name);
  chart.tabIndex = 0;
  chart.dataset.title = name;
  for (const [key, value] of Object.entries({ role: "group", "aria-roledescription": "chart", "aria-label": `${name} by step`, "aria-describedby": "chart-keys" })) chart.setAttribute(key, value);
  const title = make("div", "chart-title", "", make("h3", "", name), make("span", "hint"));
  return make("div", "", "", title, chart);
}

function drawOne(scene, name, curves) {
  const element = byId(chartId(name));
  const traces = [];
  let range = null;
  for (const { source, rows } of curves) {
    if (source === "validation") {
      traces.push(...byFate(rows, scene.current, scene.rollbacks).map(([fate, part]) => validationTrace(segments(part, has, pauses), `${name}, validation`, fate)));
    } else traces.push(...metricTraces(scene, name, rows));
    range = widest(range, valueRange(rows, scene.sight, (row) => row.low, (row) => row.high, false));
    const ofRuns = namedRunLines(scene.others, { source, name });
    traces.push(...ofRuns.traces);
    range = widest(range, valueRange(ofRuns.rows, scene.sight, mean, mean, false));
  }
  const layout = baseLayout(scene.sight);
  setScale(layout.yaxis, range, false);
  if (range && range[1] >= LARGE) layout.yaxis.format = "compact";
  layout.shapes = scene.shapes;
  const [first] = curves;
  draw(element.id, traces, layout, table(first.rows, scene.sight, { value: mean, min: (row) => row.low, max: (row) => row.high }));
  const latest = curves.map(({ source, rows }) => [source, rows.findLast(has)]).filter(([, row]) => row);
  const text = latest.map(([source, row]) => (latest.length > 1 ? `${source} ${short(row.mean)}` : `${source === "validation" ? "validation, " : ""}now ${short(row.mean)}`)).join(" · ");
  const numBad = curves.reduce((sum, { rows }) => sum + rows.reduce((bad, row) => bad + row.numBad, 0), 0);
  setText(element.previousElementSibling.querySelector(".hint"), numBad ? `${text} · ${numBad} NaN or infinite` : text);
}

const short = (value) => (value >= LARGE && value < 1e15 ? compact(value) : decimal(value));

function metricTraces(scene, name, rows) {
  return byFate(rows, scene.current, scene.rollbacks).flatMap(([fate, part]) => {
    const parts = segments(part, has, pauses);
    const hover = (row) => `${stepName(row, fate)}\n${name} ${decimal(row.mean)}` + (row.numSteps > 1 ? `\n${decimal(row.low)} to ${decimal(row.high)}` : "");
    return [
      bandTrace(parts, (row) => row.low, (row) => row.high, fate),
      ...lineTraces(parts, mean, hover, fate, scene.half && smoothed(parts, mean, scene.half)),
      ...spikeTraces(spikes(part, scene.sight, mean, (row) => row.low, (row) => row.high, false), mean, fate),
    ];
  });
}
