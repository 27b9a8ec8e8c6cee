/* One layer: its facts, the incidents that name it, and each of its statistics by step. */

import { ApiError, get, jobPath } from "./api.js";
import { showChart } from "./chart.js";
import { byId, glyph, keyed, make, pairs, setData, setNote, setText } from "./dom.js";
import { offerExport } from "./export.js";
import { compact, plural, whole } from "./format.js";
import { namesIn } from "./layer_map.js";
import { decadeTicks, finiteOf, isBad, STATS, valueText } from "./layer_stats.js";

const PACE_MS = 2000;
const MOST_FOUND = 12;
const MOST_ONSETS = 20;

let name = "";
let found = null;
let problem = "";
let asked = "";
let nextAsk = 0;
let drawn = "";
let redraw = () => {};

export function startDetail(actions) {
  redraw = actions.redraw;
  byId("layer-close").addEventListener("click", actions.close);
  byId("layer-before").addEventListener("click", () => actions.step(-1));
  byId("layer-after").addEventListener("click", () => actions.step(1));
}

export const isDetailOpen = () => name !== "";

export function openDetail(wanted) {
  if (wanted === name) return;
  [name, found, problem, asked, nextAsk, drawn] = [wanted, null, "", "", 0, ""];
  byId("layer-detail").hidden = false;
  byId("layer-charts").replaceChildren();
}

export function closeDetail() {
  if (!name) return;
  name = "";
  found = null;
  byId("layer-detail").hidden = true;
  byId("layer-charts").replaceChildren();
}

/** Draws the open layer; `version` changes when there may be new data, `known` has the names on the map. */
export function drawDetail(model, colours, version, known) {
  if (!name) return;
  const now = `${name} ${version}`;
  if (asked !== now && performance.now() >= nextAsk) ask(model, now, known);
  setText(byId("layer-name"), name);
  setNote(byId("layer-note"), problem || (found ? "" : "Loading this layer."));
  drawFound(model);
  if (!found) {
    pairs(byId("layer-facts"), []);
    setNote(byId("layer-unseen"), "");
    return;
  }
  pairs(byId("layer-facts"), factsOf(found));
  const key = [name, found.samples.step.length, found.samples.step.at(-1), colours.card, incidentsOf(model).map((incident) => [incident.number, incident.onset_step])].join("|");
  if (key === drawn) return;
  const isFirst = !drawn;
  drawn = key;
  drawCurves(model, colours);
  if (isFirst) byId("layer-detail").scrollIntoView({ block: "nearest" });
}

async function ask(model, now, known) {
  asked = now;
  nextAsk = performance.now() + PACE_MS;
  const wanted = name;
  try {
    if (!known.has(wanted)) await check(model, wanted);
    const answer = await get(jobPath(model.name, `/layers/${encodeURIComponent(wanted)}`));
    if (wanted === name) [found, problem] = [answer, ""];
  } catch (error) {
    if (wanted !== name) return;
    problem = `This layer cannot be shown: ${error instanceof ApiError && error.status ? error.message : "the daemon does not answer"}.`;
    if (!error.status) asked = "";
  }
  redraw();
}

/** A name from the address may not be on the map, or may not exist. */
async function check(model, wanted) {
  const { sample: latestSample } = await get(jobPath(model.name, "/sample"));
  if (!latestSample) throw new ApiError(404, "no sample was taken yet");
  const isKnown = [latestSample.layers, latestSample.modules].some((rows) => rows.name.includes(wanted));
  if (!isKnown) throw new ApiError(404, "no layer of this model has that name; see the list above");
}

function factsOf({ layer, module, samples }) {
  const rows = [];
  if (layer) {
    rows.push(["kind", layer.kind || "parameter"], ["elements", compact(layer.numel)], ["position from the input", `${whole(layer.index + 1)} of ${whole(layer.num_layers)}`]);
    rows.push(["training", layer.is_trainable ? "trained" : "frozen"]);
    if (layer.placement !== "replicated") rows.push(["placement across ranks", layer.placement]);
  }
  if (module) rows.push([layer ? "module" : "kind", layer ? `${module.name} (${module.kind})` : module.kind]);
  if (module?.num_units) rows.push(["units", whole(module.num_units)]);
  rows.push(["sampled in", plural(samples.step.length, "sample")]);
  return rows;
}

/** Incidents that name this layer or its module, the most urgent first. */
function incidentsOf(model) {
  const names = [name, found?.layer?.name, found?.module?.name].filter(Boolean);
  return model.sortedIncidents().filter((incident) => names.some((one) => namesIn(incident).has(one)));
}

/** Findings for the record that name it. */
function recordOf(model) {
  const names = [name, found?.layer?.name, found?.module?.name].filter(Boolean);
  return model.findingsForTheRecord().filter(({ first }) => names.some((one) => first.layers.includes(one)));
}

function drawFound(model) {
  const state = ({ is_open: isOpen, state: now }) => (isOpen ? now : "resolved");
  const incidents = incidentsOf(model).map((incident) => ({ ...incident, key: incident.id, when: `${incident.id} · onset step ${whole(incident.onset_step)} · ${state(incident)}` }));
  const findings = recordOf(model).map((finding) => ({ ...finding, key: `finding ${finding.id}`, summary: finding.first.summary, when: `for the record · onset step ${whole(finding.onset_step)}` }));
  keyed(
    byId("layer-found"),
    [...incidents, ...findings].slice(0, MOST_FOUND),
    (item) => item.key,
    () => make("li", "", "", glyph("info"), make("strong"), make("span"), make("small")),
    (element, item) => {
      const [mark, what, summary, when] = element.children;
      setData(mark, "kind", item.severity);
      setText(what, `${item.rule}, ${item.severity}`);
      setText(summary, item.summary);
      setText(when, item.when);
    },
  );
}

/* The curves */

function drawCurves(model, colours) {
  const shown = Object.entries(found.stats).filter(([, values]) => values.some((value) => value !== null));
  const isUnseen = ({ stat, of }) => found[of] && !shown.some(([other]) => other === stat);
  const unseen = found.availability.filter(isUnseen).map(({ stat, reason }) => `${STATS[stat].name}${why(reason ?? STATS[stat].only)}`);
  if (found.layer && !found.module) unseen.push("activations (its module has none)");
  setNote(byId("layer-unseen"), unseen.length ? `Not monitored here: ${unseen.join("; ")}.` : "");
  keyed(byId("layer-charts"), shown, ([stat]) => stat, createChart, (element, [stat, values]) => {
    const last = values.findLast((value) => value !== null);
    setText(element.querySelector(".hint"), `now ${valueText(stat, last)}`);
    showChart(element.lastElementChild, tracesOf(stat, values, colours), layoutOf(stat, values, model, colours));
    offerExport(element.lastElementChild, () => tableOf(stat, values));
  });
}

/** A statistic of the layer as a table. */
function tableOf(stat, values) {
  const { attempt, step, time } = found.samples;
  return [["attempt", "step", "time", stat], ...step.map((at, place) => [attempt[place], at, new Date(time[place] * 1000).toISOString(), values[place]])];
}

const why = (reason) => (reason ? ` (${reason})` : "");

function createChart([stat]) {
  const title = STATS[stat].name;
  const chart = make("div", "chart");
  chart.setAttribute("role", "img");
  chart.setAttribute("aria-label", `${title} by step`);
  chart.dataset.title = title;
  const heading = make("h4", "", `${title[0].toUpperCase()}${title.slice(1)} `, make("span", "hint"));
  return make("div", "", "", make("div", "chart-title", "", heading), chart);
}

/** One line per attempt, dots if there are few, and crosses at the bottom for non-finite values. */
function tracesOf(stat, values, colours) {
  const { step, attempt } = found.samples;
  const newest = attempt.at(-1);
  const traces = [...new Set(attempt)].map((number) => {
    const places = step.map((_, place) => place).filter((place) => attempt[place] === number && values[place] !== null);
    return {
      x: places.map((place) => step[place]),
      y: places.map((place) => (STATS[stat].isShare ? finiteOf(values[place]) * 100 : finiteOf(values[place]))),
      mode: places.length > 60 ? "lines" : "lines+markers",
      name: `attempt ${number}`,
      line: { color: number === newest ? colours.accent : colours.earlier, width: 1.6 },
      marker: { size: 4 },
      hovertext: places.map((place) => `step ${whole(step[place])}${newest > 1 ? `, attempt ${number}` : ""}\n${valueText(stat, values[place])}`),
    };
  });
  const bad = step.map((_, place) => place).filter((place) => isBad(values[place]));
  traces.push({
    x: bad.map((place) => step[place]), y: bad.map(() => 0.04), yaxis: "y2", mode: "markers", cliponaxis: false, name: "bad",
    marker: { symbol: "x", size: 8, color: colours.bad, line: { width: 1, color: colours.card } },
    hovertext: bad.map((place) => `step ${whole(step[place])}\n${valueText(stat, values[place])}`),
  });
  return traces;
}

function layoutOf(stat, values, model, colours) {
  const finite = values.filter((value) => typeof value === "number");
  const isLog = !STATS[stat].isShare && stat !== "weight_norm" && finite.length > 0 && finite.every((value) => value > 0);
  const axis = { color: colours.muted, gridcolor: colours.line, tickcolor: colours.line };
  const { step } = found.samples;
  const [low, high] = [Math.min(...step), Math.max(...step)];
  const room = Math.max(1, (high - low) * 0.03);
  return {
    margin: { l: 52, r: 10, t: 8, b: 26 },
    font: { size: 11 },
    hovermode: "closest",
    xaxis: { ...axis, range: [low - room, high + room], hasTicks: true, nticks: 4, format: "whole" },
    yaxis: { ...axis, type: isLog ? "log" : "linear", nticks: 4, ...yTicks(stat, finite, isLog) },
    shapes: incidentsOf(model).slice(0, MOST_ONSETS).map(({ onset_step: at, severity }) => ({
      type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1, line: { color: colours[severity] ?? colours.info, width: 1 }, layer: "below",
    })),
  };
}

/** Shares from 0 to 1; other values with a margin, since near-equal ones make a flat line. */
function yTicks(stat, finite, isLog) {
  if (STATS[stat].isShare) return { range: [-2, 102], tickvals: [0, 50, 100], ticktext: ["0\u202f%", "50\u202f%", "100\u202f%"] };
  if (!finite.length) return { range: [0, 1], showticklabels: false };
  const ends = [Math.min(...finite), Math.max(...finite)].map((value) => (isLog ? Math.log10(value) : value));
  const least = isLog ? 0.3 : Math.max(Math.abs(ends[1]) * 0.01, 1e-12);
  const room = Math.max(least - (ends[1] - ends[0]), 0) / 2 + (ends[1] - ends[0]) * 0.08;
  const range = [ends[0] - room, ends[1] + room];
  return { range, ...(isLog ? { tickvals: decadeTicks(range) } : {}) };
}
