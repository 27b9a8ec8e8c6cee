/*
 * The map of the layers: depth by samples, drawn as a chart of cells. Non-finite numbers have a separate colour and a
 * cross, unknown cells show the hatched background, incidents are marked above the step they began at and beside the
 * layers they name.
 *
 * All columns are equally wide, and margins are set here, so that a screen position maps to a cell.
 */

import { showChart } from "./chart.js";
import { byId, glyph, make, setNote } from "./dom.js";
import { offerExport } from "./export.js";
import { plural, whole } from "./format.js";
import { CIVIDIS, colourAt, colourRange, isBad, sampleText, placeOf, rangeTexts, shortName, STATS, valueText } from "./layer_stats.js";

const SYMBOLS = { critical: "octagon", warning: "triangle-up", info: "circle" };
const MOST_CROSSES = 800;
const MOST_ONSETS = 40;
const BOTTOM = 40;
const TOP = 18;
const RIGHT = 16;
const TICK_ROOM = 52;

const isNarrow = () => document.documentElement.clientWidth < 560;
const labelLength = (map) => map.rows.name.reduce((most, name) => Math.max(most, Math.min(name.length, isNarrow() ? 12 : 28)), 6);
const leftMargin = (map) => Math.round(14 + 6.1 * labelLength(map));

/** How many columns fit. */
export function columnsWanted() {
  const width = byId("layers").clientWidth || 800;
  return Math.max(60, Math.min(240, Math.round((width - 250) / 3)));
}

function plotHeight(numRows) {
  const most = document.documentElement.clientWidth >= 2400 ? 760 : 440;
  return Math.max(140, Math.min(most, numRows * 16));
}

/** The cell at a position in the frame, as {row, column}; null outside the map. */
export function cellAt(map, x, y) {
  const width = byId("layer-map").clientWidth - leftMargin(map) - RIGHT;
  const height = plotHeight(map.values.length);
  const column = Math.floor(((x - leftMargin(map)) / width) * map.samples.step.length);
  const row = Math.floor(((y - TOP) / height) * map.values.length);
  const isInside = column >= 0 && column < map.samples.step.length && row >= 0 && row < map.values.length;
  return isInside ? { row, column } : null;
}

/** The box of a cell in the frame, or of a whole row if no column is given. */
function boxOf(map, { row, column }) {
  const width = byId("layer-map").clientWidth - leftMargin(map) - RIGHT;
  const wide = column === undefined ? width : width / map.samples.step.length;
  const high = plotHeight(map.values.length) / map.values.length;
  return { left: leftMargin(map) + wide * (column ?? 0), top: TOP + high * row, width: wide, height: high };
}

/** Puts a visible frame around a cell or a row; hides it if there is none. */
export function outline(element, map, place) {
  element.hidden = !map || !place || place.row < 0;
  if (element.hidden) return;
  const { left, top, width, height } = boxOf(map, place);
  const [wide, high] = [Math.max(8, width), Math.max(8, height)];
  Object.assign(element.style, { left: `${left + (width - wide) / 2}px`, top: `${top + (height - high) / 2}px`, width: `${wide}px`, height: `${high}px` });
}

/** The text of a cell, in lines. */
export function cellTexts(map, { row, column }) {
  const { name, last_name: last, num, kind } = map.rows;
  const many = num[row] > 1 ? ` to ${last[row]}` : "";
  const of = num[row] > 1 || map.samples.num[column] > 1 ? `, the ${map.keep} of ${plural(num[row] * map.samples.num[column], "value")}` : "";
  const kinds = num[row] > 1 ? ` (${plural(num[row], map.of)})` : kind[row] ? ` (${kind[row]})` : "";
  return [`${name[row]}${many}${kinds}`, sampleText(map, column, whole), `${STATS[map.stat].name} ${valueText(map.stat, map.values[row][column])}${of}`];
}

/** The row of a layer; -1 if it is not on the map. */
export function rowOf(map, name) {
  return map.rowOf.get(name) ?? -1;
}

/** Draws the map; outlines are separate, so that the keyboard need not wait for it. */
export function drawMap(map, incidents, colours) {
  const element = byId("layer-map");
  const numRows = map.values.length;
  const height = plotHeight(numRows);
  element.style.height = `${height + TOP + BOTTOM}px`;
  const range = colourRange(map.stat, map.values);
  const marked = markedRows(map, incidents);
  const onsets = onsetsOf(map, incidents);
  const traces = [heat(map, range), badHeat(map, colours), crosses(map, colours, height), onsetTrace(onsets, colours), rowMarks(map, marked, colours)];
  const layout = layoutOf(map, colours, height);
  layout.shapes = [...attemptLines(map, colours), ...onsets.map((onset) => onsetLine(onset, colours))];
  showChart(element, traces, layout);
  offerExport(element, () => tableOf(map));
  const hatch = byId("layer-hatch");
  hatch.style.inset = `${TOP}px ${RIGHT}px ${BOTTOM}px ${leftMargin(map)}px`;
  drawLegend(map, range, onsets, [...marked.values()]);
}

/** The map as a table: a line per row, a column per sample. */
function tableOf({ rows, samples, values, stat }) {
  const isOne = samples.attempt.every((attempt) => attempt === samples.attempt[0]);
  const heads = samples.step.map((step, column) => (isOne ? `step ${step}` : `attempt ${samples.attempt[column]} step ${step}`));
  const nameOf = (row) => (rows.num[row] > 1 ? `${rows.name[row]} to ${rows.last_name[row]}` : rows.name[row]);
  return [["layer", "kind", "statistic", ...heads], ...values.map((cells, row) => [nameOf(row), rows.kind[row], stat, ...cells])];
}

function heat(map, range) {
  return {
    z: range ? map.values.map((row) => row.map((cell) => colourAt(cell, range))) : [],
    zmin: range?.low ?? 0,
    zmax: range?.high ?? 1,
    colorscale: CIVIDIS.map((colour, place) => [place / (CIVIDIS.length - 1), colour]),
    name: "values",
  };
}

function badHeat(map, colours) {
  const has = map.num_bad > 0;
  return {
    z: has ? map.values.map((row) => row.map((cell) => (isBad(cell) ? 1 : null))) : [[null]],
    zmin: 0,
    zmax: 1,
    colorscale: [[0, colours.bad], [1, colours.bad]],
    name: "bad",
  };
}

/** A cross in each non-finite cell; of very many only every nth. */
function crosses(map, colours, height) {
  const x = [], y = [];
  const every = Math.ceil(map.num_bad / MOST_CROSSES) || 1;
  let number = 0;
  map.values.forEach((row, place) => row.forEach((cell, column) => {
    if (isBad(cell) && number++ % every === 0) x.push(column), y.push(place);
  }));
  const width = (byId("layer-map").clientWidth - leftMargin(map) - RIGHT) / map.samples.step.length;
  const room = Math.min(width, height / map.values.length);
  const isRoomy = room >= 7;
  return {
    x, y, mode: "markers", name: "crosses",
    marker: { symbol: "x", size: isRoomy ? Math.min(9, room - 3) : 5, color: isRoomy ? colours.card : colours.bad, line: { width: isRoomy ? 0 : 1, color: colours.card } },
  };
}

/** Incidents that began on the map, the most urgent first. */
function onsetsOf(map, incidents) {
  const found = [];
  for (const incident of incidents.slice(0, MOST_ONSETS)) {
    const place = placeOf(map, incident.attempt, incident.onset_step);
    if (place !== null) found.push({ incident, place });
  }
  return found;
}

function onsetTrace(onsets, colours) {
  return {
    x: onsets.map(({ place }) => place),
    y: onsets.map(() => 1),
    yaxis: "y2",
    mode: "markers",
    cliponaxis: false,
    name: "onsets",
    marker: {
      symbol: onsets.map(({ incident }) => SYMBOLS[incident.severity] ?? "circle"),
      color: onsets.map(({ incident }) => colours[incident.severity] ?? colours.info),
      size: 10,
      line: { width: 1, color: colours.card },
    },
  };
}

const onsetLine = ({ incident, place }, colours) => ({
  type: "line", x0: place, x1: place, yref: "paper", y0: 0, y1: 1,
  line: { color: colours.card, width: 1, dash: incident.is_open ? "solid" : "dot" }, opacity: 0.85,
});

/** Rows of layers that an incident names, with the worst severity that names them. */
function markedRows(map, incidents) {
  const marked = new Map();
  for (const incident of [...incidents].reverse()) {
    for (const name of namesIn(incident)) {
      const row = rowOf(map, name);
      if (row >= 0) marked.set(row, incident.severity);
    }
  }
  return marked;
}

/** The layers and modules that an incident names. */
export function namesIn({ witness, members }) {
  return new Set([...(witness?.layers ?? []), ...members.flatMap((member) => member.layers)]);
}

function rowMarks(map, marked, colours) {
  const rows = [...marked.keys()];
  return {
    x: rows.map(() => map.samples.step.length - 0.5),
    y: rows,
    mode: "markers",
    cliponaxis: false,
    name: "marked",
    marker: {
      symbol: "triangle-left",
      color: rows.map((row) => colours[marked.get(row)] ?? colours.info),
      size: 9,
      line: { width: 1, color: colours.card },
    },
  };
}

/** Where one attempt ends and the next begins. */
function attemptLines({ samples, values }, colours) {
  const pens = [{ color: colours.card, width: 4 }, { color: colours.text, width: 2, dash: "dot" }];
  return samples.attempt.flatMap((attempt, column) => {
    if (!column || attempt === samples.attempt[column - 1]) return [];
    return pens.map((line) => ({ type: "line", x0: column - 0.5, x1: column - 0.5, y0: -0.5, y1: values.length - 0.5, line }));
  });
}

function layoutOf(map, colours, height) {
  const numColumns = map.samples.step.length;
  const axis = { color: colours.muted, hasTicks: true, tickcolor: colours.line, showgrid: false };
  const ticks = columnTicks(map);
  const rows = [...spread(map.values.length, Math.floor(height / 16))];
  return {
    margin: { l: leftMargin(map), r: RIGHT, t: TOP, b: BOTTOM, isFixed: true },
    font: { size: 12 },
    xaxis: { ...axis, range: [-0.5, numColumns - 0.5], tickvals: ticks, ticktext: ticks.map((column) => tickText(map, column)) },
    yaxis: { ...axis, range: [map.values.length - 0.5, -0.5], tickvals: rows, ticktext: rows.map((row) => shortName(map.rows.name[row], labelLength(map))), tickfont: { size: 11 } },
  };
}

/** Columns labelled with their step: the starts of attempts, the newest first, and others if there is room. */
function columnTicks(map) {
  const numColumns = map.samples.step.length;
  const width = (byId("layer-map").clientWidth - leftMargin(map) - RIGHT) / numColumns;
  const begins = map.samples.attempt.flatMap((attempt, column) => (column && attempt !== map.samples.attempt[column - 1] ? [column] : []));
  const chosen = [];
  for (const column of [...begins.reverse(), ...spread(numColumns, isNarrow() ? 3 : 8)]) {
    if (chosen.every((other) => Math.abs(other - column) * width > TICK_ROOM)) chosen.push(column);
  }
  return chosen.sort((a, b) => a - b);
}

function tickText({ samples }, column) {
  const isNew = column > 0 && samples.attempt[column] !== samples.attempt[column - 1];
  const step = whole(samples.step[column]);
  return isNew ? `${step}\nattempt ${samples.attempt[column]}` : step;
}

/** At most `most` of `count` places, evenly, the first among them. */
function spread(count, most) {
  const every = Math.max(1, Math.ceil(count / Math.max(1, most)));
  return new Set(Array.from({ length: Math.ceil(count / every) }, (_, place) => place * every));
}

function drawLegend(map, range, onsets, marked) {
  const entries = [];
  if (range) {
    const [low, high] = rangeTexts(map.stat, range);
    entries.push(["ramp", `${low} to ${high}${range.isLog ? ", log scale" : ""}`]);
  }
  if (map.num_bad) entries.push(["bad", `NaN or infinity in ${plural(map.num_bad, "cell")}`]);
  if (map.values.some((row) => row.includes(null))) entries.push(["hatch", "unknown"]);
  if (onsets.length) entries.push(["onset", "onset of an incident", onsets[0].incident.severity]);
  if (marked.length) entries.push(["named", "named by an incident", marked.at(-1)]);
  const list = byId("layer-legend");
  const text = entries.join();
  if (list.dataset.text === text) return;
  list.dataset.text = text;
  list.replaceChildren(...entries.map(([kind, name, severity]) => {
    if (kind === "onset") return make("li", "", "", glyph(severity), name);
    const key = make("span", kind === "hatch" ? "key hatch" : "key");
    key.dataset.kind = kind;
    key.dataset.severity = severity ?? "";
    if (kind === "ramp") key.style.background = `linear-gradient(to right, ${CIVIDIS.join(", ")})`;
    return make("li", "", "", key, name);
  }));
}

/** Shows a cell's text beside it, inside the frame. */
export function showTip(map, cell) {
  const tip = byId("layer-tip");
  tip.hidden = !cell;
  if (!cell) return "";
  const lines = cellTexts(map, cell);
  while (tip.children.length < lines.length) tip.append(make("span"));
  lines.forEach((line, place) => setNote(tip.children[place], line));
  const box = boxOf(map, cell);
  const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
  const frame = byId("layer-frame");
  const left = Math.min(Math.max(4, x + 14), Math.max(4, frame.clientWidth - tip.offsetWidth - 4));
  const isLow = y + 18 + tip.offsetHeight > frame.clientHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${isLow ? Math.max(0, y - tip.offsetHeight - 12) : y + 14}px`;
  return lines.join(", ");
}
