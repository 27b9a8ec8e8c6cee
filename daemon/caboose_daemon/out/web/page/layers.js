/*
 * The layers of the model over time: the choice of statistic, the map, and access to one layer's curves by pointer, by
 * keyboard and by the address (#layer=NAME).
 *
 * The stream announces a new sample by its step only; the map is then requested again, at most every few seconds and
 * never for a hidden tab. It is redrawn when its data changed, not at every step.
 */

import { hashWith, inHash } from "./address.js";
import { ApiError, get, jobPath } from "./api.js";
import { byId, make, setData, setNote, setText } from "./dom.js";
import { plural, whole } from "./format.js";
import { closeDetail, drawDetail, isDetailOpen, openDetail, startDetail } from "./layer_detail.js";
import { drawList, startList } from "./layer_list.js";
import { cellAt, columnsWanted, drawMap, namesIn, outline, rowOf, showTip } from "./layer_map.js";
import { STATS } from "./layer_stats.js";
import { recall, remember } from "./memory.js";

const PACE_MS = 2000;
const MOST_ROWS = 400;
const REMEMBERED = "caboose.layer-stat";

const view = { stat: "grad_norm", keep: "largest", cursor: null, hovered: null, opened: "" };
let map = null;
let problem = "";
let isStale = true;
let numNoticed = 0;
let isAsking = false;
let nextAsk = 0;
let drawn = "";
let colours = null;
let isChosen = false;
let onChange = () => {};
let latest = null;

/** A sample was taken, or everything is loaded again. */
export function noticeSample() {
  isStale = true;
  numNoticed += 1;
}

export function startLayers(redraw) {
  onChange = redraw;
  const remembered = recall(REMEMBERED);
  if (remembered in STATS) view.stat = remembered;
  byId("layer-stats").append(...Object.entries(STATS).map(([stat, { button }]) => {
    const element = make("button", "", button);
    element.type = "button";
    element.dataset.stat = stat;
    element.addEventListener("click", () => choose(stat));
    return element;
  }));
  byId("layer-keep").addEventListener("click", () => {
    view.keep = view.keep === "largest" ? "smallest" : "largest";
    askAnew();
  });
  startFrame(byId("layer-frame"));
  startList({ open: go, redraw: () => latest && map && drawList(latest, map, view.opened) });
  startDetail({ close: () => go(""), step: (by) => goBy(by), redraw: onChange });
  const followAddress = () => {
    view.opened = askedLayer();
    onChange();
  };
  addEventListener("popstate", followAddress);
  addEventListener("hashchange", followAddress);
  addEventListener("resize", onChange);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && isDetailOpen() && !byId("picker").open) go("");
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours = null;
    onChange();
  });
  view.opened = askedLayer();
}

/** Draws the known data, and requests more when due. */
export function drawLayers(model) {
  latest = model;
  colours ??= readColours();
  if (isStale && !isAsking && performance.now() >= nextAsk) ask(model);
  drawButtons();
  drawWords(model);
  const hasMap = map !== null && map.values.length > 0 && map.samples.step.length > 0;
  byId("layers-parts").hidden = !hasMap;
  if (hasMap) {
    drawMapIfChanged(model);
    drawList(model, map, view.opened);
  }
  if (view.opened) openDetail(view.opened);
  else closeDetail();
  if (map) drawDetail(model, colours, numNoticed, map.rowOf);
}

/* Requests */

function choose(stat) {
  view.stat = stat;
  isChosen = true;
  remember(REMEMBERED, stat);
  askAnew();
}

function askAnew() {
  view.cursor = view.hovered = null;
  isStale = true;
  nextAsk = 0;
  onChange();
}

async function ask(model) {
  isAsking = true;
  isStale = false;
  nextAsk = performance.now() + PACE_MS;
  const { stat, keep } = view;
  try {
    const found = await get(jobPath(model.name, `/layers?stat=${stat}&keep=${keep}&points=${columnsWanted()}&rows=${MOST_ROWS}&names=true`));
    if (stat === view.stat && keep === view.keep && !fellBack(found)) take(found);
  } catch (error) {
    problem = error instanceof ApiError && error.status ? error.message : "the daemon does not answer";
    isStale = true;
  }
  isAsking = false;
  onChange();
  if (isStale) setTimeout(onChange, PACE_MS);
}

/** A remembered choice may not be available for this job: then an available statistic is shown. */
function fellBack({ stats }) {
  const isSeen = ({ num_sampled: num }) => num > 0;
  if (isChosen || isSeen(stats.find(({ stat }) => stat === view.stat))) return false;
  const { stat } = stats.find(isSeen) ?? stats[0];
  if (stat === view.stat) return false;
  view.stat = stat;
  isStale = true;
  nextAsk = 0;
  return true;
}

function take(found) {
  problem = "";
  found.rowOf = new Map(found.rows.members.flatMap((names, row) => names.map((name) => [name, row])));
  found.names = found.rows.members.flat();
  found.version = `${found.stat} ${found.keep} ${found.num_sampled} ${found.samples.attempt.at(-1)} ${found.samples.step.at(-1)} ${found.num_rows} ${found.samples.step.length}`;
  map = found;
  if (view.cursor && (view.cursor.row >= map.values.length || view.cursor.column >= map.samples.step.length)) view.cursor = null;
}

/* Texts: what is shown, or why nothing is */

function drawButtons() {
  const known = new Map((map?.stats ?? []).map((stat) => [stat.stat, stat]));
  for (const button of byId("layer-stats").children) {
    const { stat } = button.dataset;
    button.setAttribute("aria-pressed", String(stat === view.stat));
    const about = known.get(stat);
    setData(button, "seen", about && !about.num_sampled ? "no" : "yes");
    button.title = about?.reason ? `Not monitored: ${about.reason}` : "";
  }
  const isShared = map !== null && (map.num_rows > map.values.length || map.num_sampled > map.samples.step.length);
  const keep = byId("layer-keep");
  keep.hidden = !isShared;
  keep.setAttribute("aria-pressed", String(view.keep === "smallest"));
}

function drawWords(model) {
  setNote(byId("layers-note"), noteOf(model));
  setData(byId("layers-parts"), "stale", map !== null && (map.stat !== view.stat || map.keep !== view.keep) ? "yes" : "no");
  if (map === null || !map.samples.step.length) return setText(byId("layers-hint"), "");
  const samples = map.num_sampled === 1 ? "1 sample" : `${whole(map.num_sampled)} samples`;
  const parts = [`${STATS[map.stat].name} of ${plural(map.num_rows, map.of)} at ${samples}`];
  if (map.num_rows > map.values.length) parts.push(`up to ${plural(Math.max(...map.rows.num), map.of)} share a row, the ${map.keep} is shown`);
  if (map.num_sampled > map.samples.step.length) parts.push(`up to ${Math.max(...map.samples.num)} samples share a column`);
  if (map.num_left_out) parts.push(`${plural(map.num_left_out, "older column")} omitted`);
  setText(byId("layers-hint"), parts.join("; "));
}

function noteOf(model) {
  if (problem) return `The layers cannot be shown: ${problem}. Retrying.`;
  if (map === null) return "Loading the layers.";
  if (map.stat !== view.stat) return "";
  if (map.samples.step.length && map.values.length) return "";
  const about = map.stats.find(({ stat }) => stat === view.stat);
  if (map.stats.some(({ num_sampled: num }) => num)) return `${STATS[view.stat].button} cannot be shown: ${about.reason}.`;
  if (map.blind.activations && about.of === "module") return `Not monitored: ${about.reason}.`;
  const when = map.sample_every ? ` One is taken every ${plural(map.sample_every, "step")}; the run is at step ${whole(model.status.step)}.` : "";
  return `No layers sampled yet.${when}`;
}

/* The map */

function drawMapIfChanged(model) {
  const incidents = model.sortedIncidents();
  const found = incidents.map(({ number, severity, is_open: isOpen, onset_step: step, members }) => [number, severity, isOpen, step, members.length]);
  const { clientWidth: width } = byId("layer-map");
  const key = [map.version, found, width, document.documentElement.clientWidth, colours.card].join("|");
  if (key !== drawn && width) {
    drawn = key;
    drawMap(map, incidents, colours);
  }
  drawOutlines();
}

function drawOutlines() {
  outline(byId("layer-cell"), map, view.cursor);
  outline(byId("layer-row"), map, view.opened ? { row: rowOf(map, view.opened) } : null);
}

function startFrame(frame) {
  const at = (event) => {
    const box = frame.getBoundingClientRect();
    return map && cellAt(map, event.clientX - box.left, event.clientY - box.top);
  };
  frame.addEventListener("pointermove", (event) => {
    const cell = at(event);
    if (cell?.row === view.hovered?.row && cell?.column === view.hovered?.column) return;
    view.hovered = cell;
    showTip(map, cell);
  });
  frame.addEventListener("pointerleave", () => {
    view.hovered = null;
    showTip(map, null);
  });
  frame.addEventListener("click", (event) => {
    const cell = at(event);
    if (cell) go(nameAt(cell.row));
  });
  frame.addEventListener("keydown", walk);
  frame.addEventListener("focus", () => {
    if (!map || view.cursor || !frame.matches(":focus-visible")) return;
    view.cursor = { row: Math.max(0, rowOf(map, view.opened)), column: map.samples.step.length - 1 };
    announce();
  });
  frame.addEventListener("blur", () => {
    view.cursor = null;
    showTip(map, null);
    drawOutlines();
  });
}

/** Moves through the map by keys. */
function walk(event) {
  if (!map || !map.values.length) return;
  const [lastRow, lastColumn] = [map.values.length - 1, map.samples.step.length - 1];
  const { row, column } = view.cursor ?? { row: 0, column: lastColumn };
  const moves = {
    ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
    PageUp: [row - 10, column], PageDown: [row + 10, column], Home: [0, column], End: [lastRow, column],
  };
  if (event.key === "Enter") {
    event.preventDefault();
    return go(nameAt(row));
  }
  const move = moves[event.key];
  if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  view.cursor = { row: Math.min(lastRow, Math.max(0, move[0])), column: Math.min(lastColumn, Math.max(0, move[1])) };
  announce();
}

function announce() {
  setText(byId("layer-cursor"), showTip(map, view.cursor));
  drawOutlines();
}

/* One layer, given by the address */

const askedLayer = () => inHash("layer");

function go(name) {
  if (name === view.opened) return;
  history.pushState(null, "", `${location.pathname}${location.search}${hashWith("layer", name)}`);
  const returnTo = name ? null : byId("layer-detail").contains(document.activeElement);
  view.opened = name;
  if (latest) drawLayers(latest);
  if (name) byId("layer-name").focus();
  else if (returnTo) byId("layer-frame").focus({ preventScroll: true });
}

/** The layer that a row opens: of several one that an incident names, else the first. */
function nameAt(row) {
  const members = map.rows.members[row];
  const named = new Set(latest.sortedIncidents().flatMap((incident) => [...namesIn(incident)]));
  return members.find((name) => named.has(name)) ?? members[0];
}

function goBy(by) {
  const place = map?.names.indexOf(view.opened) ?? -1;
  const next = map?.names[place + by];
  if (place >= 0 && next !== undefined) go(next);
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["text", "muted", "line", "card", "accent", "bad", "critical", "warning", "info", "earlier"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
