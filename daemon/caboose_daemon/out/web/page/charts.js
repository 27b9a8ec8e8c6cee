/*
 * The curves of a job: loss, gradient norm, learning rate; beside them, in `speed.js`, throughput and phases.
 *
 * All charts show the same steps (`zooming.js`), at the finest available resolution (`detail.js`).
 */

import { byFate, segments, valueRange } from "./curves.js";
import { detailState, rowsFor, startDetail } from "./detail.js";
import { byId, make, milestone, setData, setNote, setText } from "./dom.js";
import { decimal, plural } from "./format.js";
import { attemptLabels, attemptShapes, badTrace, incidentShapes, incidentTrace, recordTrace, rollbackArrows, rollbackTrace } from "./marks.js";
import { recall, remember } from "./memory.js";
import { drawParts, partNames } from "./part_lines.js";
import { bandTrace, baseLayout, draw, followTheme, isReady, lineTraces, missing, PART_COLOURS, setScale, stepName } from "./plot.js";
import { halfLife, smoothed } from "./smoothing.js";
import { drawPhases, drawThroughput } from "./speed.js";
import { startZooming, stepsInSight } from "./zooming.js";

const STRENGTHS = ["off", "light", "strong"];
const view = { isLog: false, smoothing: "off" };
let drawn = "";
let onChange = () => {};

/** Connects the controls and the theme; `redraw` is called when something has to be redrawn. */
export function startCharts(redraw) {
  onChange = () => {
    drawn = "";
    redraw();
  };
  startLogToggle();
  startSmoothing();
  startZooming(onChange);
  startDetail(onChange);
  followTheme(onChange);
}

function startLogToggle() {
  const toggle = byId("log-toggle");
  const show = () => toggle.setAttribute("aria-pressed", String(view.isLog));
  view.isLog = recall("caboose.log-loss") === "1";
  show();
  toggle.addEventListener("click", () => {
    view.isLog = !view.isLog;
    remember("caboose.log-loss", view.isLog ? "1" : "0");
    show();
    onChange();
  });
}

function startSmoothing() {
  const known = recall("caboose.smoothing");
  if (STRENGTHS.includes(known)) view.smoothing = known;
  for (const input of byId("smoothing").querySelectorAll("input")) {
    input.checked = input.value === view.smoothing;
    input.addEventListener("change", () => {
      view.smoothing = input.value;
      remember("caboose.smoothing", input.value);
      onChange();
    });
  }
}

/** Draws everything; does nothing until plotly and the curves have arrived. */
export function drawCharts(model) {
  if (!isReady(onChange) || !model.hasCurves || !hasChanged(model)) return;
  const current = model.status.attempt;
  const { steps, isAll } = stepsInSight(model.rows);
  const rows = rowsFor(model, steps, isAll);
  const half = halfLife(view.smoothing, steps);
  setData(byId("charts"), "detail", detailState());
  drawLoss(model, rows, current, steps, half);
  drawNorm(model, rows, current, steps, half);
  drawRate(model, rows, current, steps);
  drawThroughput(model, rows, steps, half);
  drawPhases(model, rows, steps);
  legend(model, rows, half);
  milestone("charts");
}

/** Whether there is anything new to draw: a status arrives every second, and most do not change a curve. */
function hasChanged(model) {
  const { attempt, blind } = model.status;
  const state = JSON.stringify([model.name, model.version, attempt, blind, document.documentElement.clientWidth]);
  if (state === drawn) return false;
  drawn = state;
  return true;
}

function drawLoss(model, rows, current, steps, half) {
  const has = (row) => row.loss !== null && (!view.isLog || row.loss > 0);
  const traces = [];
  for (const [fate, part] of byFate(rows, current, model.rollbacks())) {
    const hasBand = (row) => row.lossMin !== null && (!view.isLog || row.lossMin > 0);
    traces.push(bandTrace(segments(part, hasBand), (row) => row.lossMin, (row) => row.lossMax, fate));
    const hover = (row) => `${stepName(row, fate)}<br>loss ${decimal(row.loss)}<br>${decimal(row.lossMin)} to ${decimal(row.lossMax)}`;
    const parts = segments(part, has);
    traces.push(...lineTraces(parts, (row) => row.loss, hover, fate, half && smoothed(parts, (row) => row.loss, half)));
  }
  const ofParts = drawParts(model, rows, current, "loss", half, view.isLog);
  if (ofParts) traces.splice(0, traces.length, ...ofParts.traces);
  traces.push(badTrace(rows), recordTrace(model), rollbackTrace(model), incidentTrace(model, steps));
  const layout = baseLayout(steps);
  const [low, high] = ofParts ? [ofParts.low, ofParts.high] : [(row) => row.lossMin, (row) => row.lossMax];
  setScale(layout.yaxis, valueRange(rows, steps, low, high, view.isLog), view.isLog);
  layout.shapes = [...attemptShapes(rows), ...incidentShapes(model)];
  layout.annotations = [...attemptLabels(rows), ...rollbackArrows(model)];
  draw("loss-chart", traces, layout);

  const hidden = view.isLog ? rows.filter((row) => row.loss !== null && row.loss <= 0).length : 0;
  setText(byId("loss-hint"), `mean over ranks${grain(rows, steps)}`);
  const notes = [];
  if (!rows.some((row) => row.loss !== null || row.numBad)) notes.push(missing(model, "loss", "No loss has been reported yet."));
  if (hidden) notes.push(`${plural(hidden, "point")} at or below zero cannot be drawn on a log scale.`);
  if (model.numOldAttempts) notes.push(`${plural(model.numOldAttempts, "older attempt")} not drawn.`);
  if (detailState() === "failed") notes.push("The daemon did not send these steps in detail. Retrying.");
  setNote(byId("loss-note"), notes.join(" "));
}

/** How many steps a visible point covers, as text; empty if one. */
function grain(rows, [from, to]) {
  let least = Infinity, most = 1;
  for (const { step, numSteps } of rows) {
    if (step < from || step > to) continue;
    least = Math.min(least, numSteps);
    most = Math.max(most, numSteps);
  }
  if (most === 1) return "";
  return least === 1 ? `; older points cover up to ${plural(most, "step")} each` : `; a point covers ${plural(most, "step")}`;
}

function drawNorm(model, rows, current, steps, half) {
  const has = (row) => row.norm !== null && row.norm > 0;
  const pauses = (row) => row.norm === null && !row.numBad;
  const traces = [];
  for (const [fate, part] of byFate(rows, current, model.rollbacks())) {
    const parts = segments(part, has, pauses);
    traces.push(bandTrace(parts, (row) => row.normMin || row.norm, (row) => row.normMax, fate));
    const hover = (row) => `${stepName(row, fate)}<br>gradient norm ${decimal(row.norm)}` + (row.numSteps > 1 ? `<br>${decimal(row.normMin)} to ${decimal(row.normMax)}` : "");
    traces.push(...lineTraces(parts, (row) => row.norm, hover, fate, half && smoothed(parts, (row) => row.norm, half)));
  }
  const ofParts = drawParts(model, rows, current, "norm", half, true);
  if (ofParts) traces.splice(0, traces.length, ...ofParts.traces);
  traces.push(badTrace(rows));
  const layout = baseLayout(steps);
  const [low, high] = ofParts ? [ofParts.low, ofParts.high] : [(row) => row.normMin, (row) => row.normMax];
  setScale(layout.yaxis, valueRange(rows, steps, low, high, true), true);
  layout.shapes = incidentShapes(model);
  draw("norm-chart", traces, layout);
  const isEmpty = !rows.some((row) => row.norm !== null || row.numBad);
  setNote(byId("norm-note"), isEmpty ? missing(model, "gradients", "No gradient norm has been reported.") : "");
}

function drawRate(model, rows, current, steps) {
  const traces = [];
  for (const [fate, part] of byFate(rows, current, model.rollbacks())) {
    const hover = (row) => `${stepName(row, fate)}<br>learning rate ${decimal(row.lr)}`;
    traces.push(...lineTraces(segments(part, (row) => row.lr !== null), (row) => row.lr, hover, fate));
  }
  const ofParts = drawParts(model, rows, current, "lr", 0, false);
  if (ofParts) traces.splice(0, traces.length, ...ofParts.traces);
  const layout = baseLayout(steps);
  const [low, high] = ofParts ? [ofParts.low, ofParts.high] : [(row) => row.lr, (row) => row.lr];
  setScale(layout.yaxis, valueRange(rows, steps, low, high, false), false);
  layout.shapes = incidentShapes(model);
  draw("lr-chart", traces, layout);
  const isEmpty = !rows.some((row) => row.lr !== null);
  setNote(byId("lr-note"), isEmpty ? missing(model, "lr", "No learning rate has been reported.") : "");
}

function legend(model, rows, half) {
  const names = partNames(model);
  const entries = names.map((name, number) => [`part${number % PART_COLOURS}`, name]);
  if (!names.length) entries.push(...(half ? [["line", `smooth, half-life ${plural(half, "step")}`], ["raw", "mean"]] : [["line", "mean"]]));
  if (!names.length) entries.push(["band", "minimum to maximum over ranks"]);
  const fates = new Set(byFate(rows, model.status.attempt, model.rollbacks()).map(([fate]) => fate));
  if (fates.has("earlier")) entries.push(["earlier", "earlier attempts"]);
  if (fates.has("undone")) entries.push(["undone", "undone by a rollback"]);
  if (model.rollbacks().length) entries.push(["rollback", "rolled back"]);
  if (model.sortedDecisions().some(({ kind, state, boundary }) => kind === "rollback" && state === "advised" && boundary !== null)) entries.push(["would", "would be rolled back"]);
  if (model.incidents.size) entries.push(["onset", "onset of an incident"]);
  if ([...model.incidents.values()].some((incident) => incident.opened_step !== incident.onset_step)) entries.push(["detected", "detected"]);
  if (model.findingsForTheRecord().length) entries.push(["record", "for the record"]);
  const numBad = model.rows.reduce((sum, row) => sum + row.numBad, 0);
  if (numBad) entries.push(["bad", `${plural(numBad, "step")} with NaN or infinity`]);
  const list = byId("legend");
  const text = entries.map(([, name]) => name).join();
  if (list.dataset.text === text) return;
  list.dataset.text = text;
  list.replaceChildren(...entries.map(([kind, name]) => {
    const key = make("span", "key");
    key.dataset.kind = kind;
    return make("li", "", "", key, name);
  }));
}
