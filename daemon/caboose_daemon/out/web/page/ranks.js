/*
 * The ranks: a table, or for many of them a map with the worst by name beside it and the numbers of the chosen one.
 */

import { get } from "./api.js";
import { pictureWith } from "./chart.js";
import { byId, glyph, keyed, make, pairs, setData, setNote, setText } from "./dom.js";
import { offerExport } from "./export.js";
import { decimal, duration, NONE, plural, whole } from "./format.js";
import { recall, remember } from "./memory.js";
import { arrange, neighbour, paint, shade, squareAt } from "./rankgrid.js";
import { addColumns, compare, EXTRA, furthest, isNotFinite, MEASURES, namedRanks, rankState, sayHeard, SILENT_SECONDS, STATE_NAMES } from "./rankvalues.js";

export { SILENT_SECONDS };
const MOST_ROWS = 64;
const NUM_WORST = 10;
const MOST_GROUPED = 1000;
const GLYPHS = { live: "ok", silent: "warning", failed: "critical", left: "info", terminated: "info", expected: "unknown", absent: "unknown" };
const KEYS = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"]);
/** Position of the table's additional columns: after the step time. */
const EXTRA_AT = 6;
const MEASURE_KEY = "caboose-rank-measure";

/** Every rank in order, also those without a report. */
export function allRanks(status) {
  if (status.ranks.length >= status.world) return status.ranks;
  const known = new Map(status.ranks.map((rank) => [rank.rank, rank]));
  return Array.from({ length: status.world }, (_, rank) => known.get(rank) ?? { rank, state: "absent" });
}

/** "7 live, 1 silent". */
export function countStates(ranks) {
  const counts = new Map();
  for (const rank of ranks) counts.set(rankState(rank), (counts.get(rankState(rank)) ?? 0) + 1);
  return counts;
}

/* The reader's choices */

let measure = "state";
let wanted = "";
let chosen = -1;
let pointed = -1;

export async function startRanks() {
  const { columns } = await get("columns").catch(() => ({ columns: [] })); // without them the page shows the rest
  addColumns(columns);
  const remembered = recall(MEASURE_KEY);
  if (remembered in MEASURES) measure = remembered;
  const select = byId("rank-measure");
  for (const [key, { name }] of Object.entries(MEASURES)) {
    const option = make("option", "", name);
    option.value = key;
    select.append(option);
  }
  select.value = measure;
  select.addEventListener("change", () => {
    measure = select.value;
    remember(MEASURE_KEY, measure);
    drawLast();
  });
  byId("rank-filter").addEventListener("input", (event) => {
    wanted = event.target.value.trim().toLowerCase();
    drawLast();
  });
  startMap(byId("rank-grid"));
  const [header] = byId("rank-table").tHead.rows;
  for (const { name, label } of EXTRA) {
    const cell = make("th", "", label);
    cell.scope = "col";
    setData(cell, "column", name);
    header.insertBefore(cell, header.children[EXTRA_AT + EXTRA.findIndex((column) => column.name === name)]);
  }
}

/** A column without any value, such as a device's on a CPU, is not shown. */
function hideUnknown(ranks) {
  for (const { name } of EXTRA) {
    const isKnown = ranks.some((rank) => rank[name] !== null && rank[name] !== undefined);
    for (const cell of byId("rank-table").querySelectorAll(`[data-column="${name}"]`)) cell.hidden = !isKnown;
    const option = byId("rank-measure").querySelector(`[value="${name}"]`);
    option.hidden = option.disabled = !isKnown;
  }
}

function startMap(canvas) {
  const placeOf = (event) => (plan === null ? -1 : squareAt(plan, event.offsetX - 2, event.offsetY - 2));
  const point = (place) => {
    if (place !== pointed) (pointed = place), drawLast();
  };
  canvas.addEventListener("pointermove", (event) => point(placeOf(event)));
  canvas.addEventListener("pointerleave", () => point(-1));
  canvas.addEventListener("click", (event) => choose(placeOf(event)));
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") choose(-1);
    if (!KEYS.has(event.key) || plan === null || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    choose(chosen < 0 ? 0 : neighbour(plan, chosen, event.key));
  });
  canvas.addEventListener("focus", () => {
    if (chosen < 0 && canvas.matches(":focus-visible")) choose(0);
  });
  new ResizeObserver(() => drawLast()).observe(canvas.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawLast());
}

function choose(place) {
  chosen = place;
  pointed = -1;
  drawLast();
  const rank = last?.ranks[place];
  if (rank) setText(byId("rank-shown"), `Rank ${rank.rank}, ${rank.host ?? "host unknown"}: ${MEASURES[measure].say(rank, last.all)}`);
}

/** By host, or by the number of a rank. */
const isWanted = (rank) => !wanted || (rank.host ?? "").toLowerCase().includes(wanted) || String(rank.rank) === wanted;

/* Drawing */

let last = null;
let plan = null;
let planned = "";

export function drawRanks(model) {
  const { status } = model;
  const ranks = allRanks(status);
  const counts = countStates(ranks);
  setText(byId("ranks-hint"), [...counts].map(([state, number]) => `${whole(number)} ${STATE_NAMES[state] ?? state}`).join(", "));
  const isMany = ranks.length > MOST_ROWS;
  for (const id of ["rank-map", "rank-tools", "rank-map-export", "rank-legend", "rank-detail"]) byId(id).hidden = !isMany;
  byId("rank-scroll").hidden = byId("rank-table-export").hidden = isMany;
  const all = compare(ranks, namedRanks(model.findings.values(), status.world));
  last = { ranks, all };
  if (isMany) offerExport(byId("rank-grid"), tableOf, pictureOfMap);
  else offerExport(byId("rank-table"), tableOf, null);
  if (isMany) drawMap();
  else keyed(byId("rank-table").tBodies[0], ranks, (rank) => rank.rank, createRow, (row, rank) => updateRow(row, rank, all));
  hideUnknown(ranks);
}

/** All ranks as a table, those too that the filter hides. */
function tableOf() {
  const extra = EXTRA.map(({ name }) => name).filter((name) => last.ranks.some((rank) => typeof rank[name] === "number"));
  const names = ["rank", "host", "pid", "state", "step", "loss", "step_seconds", ...extra, "silent_seconds", "num_missed", "num_dropped", "error"];
  return [names, ...last.ranks.map((rank) => names.map((name) => (name === "state" ? rankState(rank) : rank[name])))];
}

function pictureOfMap(canvas, { title, ...words }) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const by = `${title.split(":")[0]}: ranks by ${MEASURES[measure].name.toLowerCase()}`;
  return pictureWith({ title: by, ...words }, width, height, (pen) => pen.drawImage(canvas, 0, 0, width, height));
}

function drawLast() {
  if (last !== null && !byId("rank-map").hidden) drawMap();
}

function drawMap() {
  const { ranks, all } = last;
  const canvas = byId("rank-grid");
  const width = canvas.parentElement.clientWidth;
  if (!width) return; // no layout yet; the observer calls again
  const first = ranks[0];
  const wasPlanned = `${width} ${ranks.length} ${first.host} ${ranks.at(-1).host} ${ranks.filter((rank) => rank.host).length}`;
  if (wasPlanned !== planned) [plan, planned] = [arrange(ranks, width - 4), wasPlanned];
  const colours = readColours();
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  paint(canvas, plan, ranks, width, { measure, all, isShown: isWanted, chosen, pointed, colours, isDark });
  canvas.setAttribute("aria-label", `Map of ${plural(ranks.length, "rank")} by ${MEASURES[measure].name.toLowerCase()}: ${byId("ranks-hint").textContent}. Arrow keys move between ranks.`);
  drawLegend(isDark);
  drawWorst(ranks, all);
  drawDetail(ranks, all);
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["ok", "info", "warning", "critical", "bad", "unknown", "accent", "muted"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
}

/* The legend: the states' shapes, or the scale with its two ends */

const STATE_KEYS = [["live", "live"], ["named", "live, needs attention"], ["silent", "silent"], ["failed", "failed"], ["bad", "loss not finite"], ["left", "left or terminated"], ["absent", "no report"]];

function drawLegend(isDark) {
  const legend = byId("rank-legend");
  const key = `${measure} ${isDark}`;
  if (legend.dataset.key === key) return;
  legend.dataset.key = key;
  const { ends } = MEASURES[measure];
  if (!ends) {
    legend.replaceChildren(...STATE_KEYS.map(([kind, name]) => make("span", "rank-key", "", swatch(kind), name)));
    return;
  }
  const bar = make("i", "rank-scale");
  const stops = Array.from({ length: 9 }, (_, index) => shade(index / 8, isDark));
  bar.style.backgroundImage = `linear-gradient(90deg, ${stops.join(", ")})`;
  legend.replaceChildren(make("span", "rank-key", "", ends[0], bar, ends[1]), make("span", "rank-key", "", swatch("ring"), "needs attention"), make("span", "rank-key", "", swatch("unknown"), "unknown"));
}

function swatch(kind) {
  const element = make("i", "rank-swatch");
  element.dataset.kind = kind;
  return element;
}

/* The worst by name */

function drawWorst(ranks, all) {
  const { worst, say, isBad } = MEASURES[measure];
  const shown = groupsOf(furthest(ranks.filter(isWanted), measure, all).slice(0, MOST_GROUPED), (rank) => say(rank, all)).slice(0, NUM_WORST);
  setText(byId("rank-worst-title"), worst);
  setNote(byId("rank-worst-none"), shown.length ? "" : wanted && !ranks.some(isWanted) ? `No host or rank matches “${wanted}”.` : "None.");
  keyed(
    byId("rank-worst"),
    shown,
    ([rank]) => rank.rank,
    ([rank]) => {
      const button = make("button", "worst", "", glyph("unknown"), make("b"), make("span", "worst-host"), make("span", "worst-why"));
      button.type = "button";
      button.addEventListener("click", () => choose(last.ranks.findIndex((other) => other.rank === rank.rank)));
      return make("li", "", "", button);
    },
    (item, group) => {
      const [rank] = group;
      const [mark, name, host, why] = item.firstElementChild.children;
      const state = rankState(rank);
      setData(mark, "kind", state !== "live" ? (GLYPHS[state] ?? "unknown") : isBad(rank, all) ? "warning" : "ok");
      const words = group.length > 1 ? [rank.host, nameOf(group)] : [nameOf(group), rank.host ?? ""];
      setText(name, words[0]);
      setText(host, words[1]);
      setText(why, say(rank, all));
      item.firstElementChild.setAttribute("aria-pressed", String(group.some((other) => other.rank === last.ranks[chosen]?.rank)));
    },
  );
}

/** Ranks of one host with the same text share a line: a lost host is one problem, not eight. */
function groupsOf(ranks, wordsOf) {
  const groups = new Map();
  for (const rank of ranks) {
    const key = rank.host === undefined ? `rank ${rank.rank}` : `${rank.host}\n${wordsOf(rank)}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(rank);
  }
  return [...groups.values()];
}

/** "rank 3", "ranks 8 to 15", "3 ranks". */
function nameOf(group) {
  const numbers = group.map(({ rank }) => rank).sort((a, b) => a - b);
  if (numbers.length === 1) return `rank ${numbers[0]}`;
  const isRow = numbers.at(-1) - numbers[0] === numbers.length - 1;
  return isRow ? `ranks ${numbers[0]} to ${numbers.at(-1)}` : `${numbers.length} ranks`;
}

/* One rank's numbers */

function drawDetail(ranks, all) {
  const rank = ranks[pointed >= 0 ? pointed : chosen];
  byId("rank-hint").hidden = Boolean(rank);
  const list = byId("rank-facts");
  list.hidden = !rank;
  if (!rank) return;
  const rows = [["Rank", `${rank.rank}${rank.host ? ` on ${rank.host}` : ""}`], ["State", MEASURES.state.say(rank, all), MEASURES.state.isBad(rank, all) ? "warning" : ""]];
  if (rank.state !== "absent") {
    rows.push(["Step", `${whole(rank.step)}, ${MEASURES.behind.say(rank, all)}`, MEASURES.behind.isBad(rank, all) ? "warning" : ""]);
    const extra = EXTRA.map(({ name }) => name).filter((name) => typeof rank[name] === "number");
    for (const key of ["loss", "step_seconds", ...extra, "lost"]) rows.push([MEASURES[key].name, MEASURES[key].say(rank, all), MEASURES[key].isBad(rank, all) ? "warning" : ""]);
    rows.push(["Last seen", sayHeard(rank)], ["Process", rank.pid === undefined ? NONE : `pid ${rank.pid}`]);
  }
  pairs(list, rows);
}

/* The table */

function createRow(rank) {
  const row = make("tr", "", "", make("th", "", String(rank.rank)));
  row.firstElementChild.scope = "row";
  for (const name of ["left", "left state", "", "", ""]) row.append(make("td", name));
  for (const { name } of EXTRA) {
    row.append(make("td"));
    setData(row.lastElementChild, "column", name);
  }
  for (let count = 0; count < 3; count += 1) row.append(make("td"));
  row.children[2].append(glyph("unknown"), make("span"), make("small"));
  return row;
}

function updateRow(row, rank, all) {
  const state = rankState(rank);
  const [, host, stateCell, step, loss, seconds] = row.children;
  const [silent, missed, dropped] = [...row.children].slice(-3);
  EXTRA.forEach(({ name }, index) => setText(row.children[EXTRA_AT + index], MEASURES[name].say(rank)));
  setData(row, "state", state);
  setText(host, rank.host ?? NONE);
  const [mark, name, small] = stateCell.children;
  setData(mark, "kind", GLYPHS[state] ?? "unknown");
  setText(name, STATE_NAMES[state] ?? state);
  const agent = rank.agent_state === "disabled" ? "its agent is disabled" : "";
  const failures = rank.agent_failures ? `${plural(rank.agent_failures, "agent failure")}` : "";
  const named = all.named.has(rank.rank) ? `named by ${all.named.get(rank.rank).join(", ")}` : "";
  setText(small, [rank.error, agent, failures, named].filter(Boolean).join("; "));
  setText(step, rank.step === undefined ? NONE : whole(rank.step));
  setText(loss, decimal(rank.loss));
  setText(seconds, duration(rank.step_seconds));
  setText(silent, sayHeard(rank));
  setText(missed, whole(rank.num_missed));
  setText(dropped, whole(rank.num_dropped));
  setData(loss, "bad", String(isNotFinite(rank.loss)));
  flag(step, rank, all, "behind");
  if (!isNotFinite(rank.loss)) flag(loss, rank, all, "loss");
  flag(seconds, rank, all, "step_seconds");
  setData(missed, "some", String(rank.num_missed > 0));
  setData(dropped, "some", String(rank.num_dropped > 0));
}

/** A number far from the other ranks' is bold and has a note. */
function flag(cell, rank, all, key) {
  const { isBad, say } = MEASURES[key];
  const bad = rank.state === "live" && all.front > 0 && isBad(rank, all);
  setData(cell, "some", String(bad));
  const title = bad ? say(rank, all) : "";
  if (cell.title !== title) cell.title = title;
}
