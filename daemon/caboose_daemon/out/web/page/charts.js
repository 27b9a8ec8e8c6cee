/*
 * The curves of a job: loss, gradient norm, learning rate; beside them, in `speed.js`, throughput and phases.
 *
 * All charts show the same steps (`zooming.js`), at the finest available resolution (`detail.js`).
 */

import { Placement } from "./axis.js";
import { otherRuns, runLines, startComparing } from "./compare.js";
import { byFate, segments, spikes, valueRange } from "./curves.js";
import { detailState, rowsFor, startDetail } from "./detail.js";
import { byId, make, milestone, setData, setNote, setText } from "./dom.js";
import { decimal, plural } from "./format.js";
import { attemptLabels, attemptShapes, badTrace, gapShapes, incidentShapes, incidentTrace, recordTrace, rollbackArrows, rollbackTrace } from "./marks.js";
import { recall, remember } from "./memory.js";
import { drawGroupNames, drawNamedCharts, groupLines, startNamedCharts, validationLoss, widest } from "./named_charts.js";
import { drawParts, partNames } from "./part_lines.js";
import { bandTrace, baseLayout, draw, followTheme, lineTraces, missing, PART_COLOURS, setScale, spikeTraces, stepName, table } from "./plot.js";
import { halfLife, smoothed } from "./smoothing.js";
import { drawPhases, drawThroughput } from "./speed.js";
import { axisKind, keepInSight, offerAxes, rangeInSight, startZooming } from "./zooming.js";

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
  startComparing(onChange);
  startNamedCharts(onChange);
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

/** Draws everything; does nothing until the curves have arrived. */
export function drawCharts(model) {
  if (!model.hasCurves || !hasChanged(model)) return;
  const scene = sceneOf(model);
  setData(byId("charts"), "detail", detailState());
  drawLoss(scene);
  drawNorm(scene);
  drawRate(scene);
  drawThroughput(scene);
  drawPhases(scene);
  drawNamedCharts(scene);
  legend(scene);
  milestone("charts");
}

/** What every chart is drawn of: the rows in sight with their places on the axis, and the marks they share. */
function sceneOf(model) {
  offerAxes(model.rows);
  const kind = axisKind();
  const place = new Placement(model.rows, kind);
  place.place(model.rows);
  const others = otherRuns(kind);
  const { sight, isAll } = rangeInSight(model.rows, others.flatMap((run) => run.rows), place);
  keepInSight(model.rows);
  const steps = stepsWithin(model.rows, sight, kind);
  const { rows, named } = rowsFor(model, steps, isAll);
  const gaps = place.place(rows);
  const current = model.status.attempt;
  const holes = gapShapes(gaps, place);
  return {
    model, rows, current, place, sight, gaps, others, gapShapes: holes,
    named: (...sources) => named(...sources).map((curve) => (place.placeNamed(curve.rows, gaps), curve)),
    rollbacks: model.rollbacks(),
    half: halfLife(view.smoothing, steps),
    shapes: [...holes, ...incidentShapes(model, place)],
  };
}

/** The steps of this range of the axis, with a row more at either side. */
function stepsWithin(rows, [from, to], kind) {
  if (kind === "step" || !rows.length) return [from, to];
  const first = rows.findIndex((row) => row.x >= from), last = rows.findLastIndex((row) => row.x <= to);
  const [low, high] = [rows.at(Math.max(0, first - 1)), rows.at(Math.min(rows.length - 1, last + 1))];
  return [Math.min(low.firstStep, high.firstStep), Math.max(low.step, high.step)];
}

/** Whether there is anything new to draw: a status arrives every second, and most do not change a curve. */
function hasChanged(model) {
  const { attempt, blind } = model.status;
  const state = JSON.stringify([model.name, model.version, attempt, blind, document.documentElement.clientWidth]);
  if (state === drawn) return false;
  drawn = state;
  return true;
}

/** The traces of one number of the run: for each fate a band, a line, and the values that stand out. */
function curveTraces(scene, { valueOf, lowOf, highOf, hover, isLog = false, pauses, isSmooth = true }) {
  const { rows, current, rollbacks, sight, half } = scene;
  const has = (row) => valueOf(row) !== null && (!isLog || valueOf(row) > 0);
  const hasBand = (row) => lowOf(row) !== null && (!isLog || lowOf(row) > 0);
  return byFate(rows, current, rollbacks).flatMap(([fate, part]) => {
    const parts = segments(part, has, pauses);
    const smooth = isSmooth && half ? smoothed(parts, valueOf, half) : null;
    return [
      bandTrace(segments(part, hasBand, pauses), lowOf, highOf, fate),
      ...lineTraces(parts, valueOf, (row) => hover(row, fate), fate, smooth),
      ...spikeTraces(spikes(part.filter(has), sight, valueOf, lowOf, highOf, isLog), valueOf, fate),
    ];
  });
}

const LOSS = { valueOf: (row) => row.loss, lowOf: (row) => row.lossMin, highOf: (row) => row.lossMax };
const NORM = { valueOf: (row) => row.norm, lowOf: (row) => row.normMin || row.norm, highOf: (row) => row.normMax, isLog: true };
const RATE = { valueOf: (row) => row.lr, lowOf: (row) => row.lr, highOf: (row) => row.lr, isSmooth: false };

function drawLoss(scene) {
  const { model, rows, current, place, sight, half } = scene;
  const { isLog } = view;
  const hover = (row, fate) => `${stepName(row, fate)}\nloss ${decimal(row.loss)}\n${decimal(row.lossMin)} to ${decimal(row.lossMax)}`;
  const ofParts = drawParts(model, rows, current, "loss", half, isLog);
  const traces = ofParts ? ofParts.traces : curveTraces(scene, { ...LOSS, hover, isLog });
  const validation = validationLoss(scene, isLog);
  traces.push(...runLines(scene.others, "loss", LOSS.valueOf, isLog), ...(validation?.traces ?? []));
  traces.push(badTrace(rows), recordTrace(model, place), rollbackTrace(model, place), incidentTrace(model, place, sight));
  const layout = baseLayout(sight);
  const [low, high] = ofParts ? [ofParts.low, ofParts.high] : [LOSS.lowOf, LOSS.highOf];
  const range = withRuns(scene, valueRange(rows, sight, low, high, isLog), LOSS.valueOf, isLog);
  setScale(layout.yaxis, widest(range, validation?.range), isLog);
  layout.shapes = [...attemptShapes(rows), ...scene.shapes];
  layout.annotations = [...attemptLabels(rows), ...rollbackArrows(model, place)];
  draw("loss-chart", traces, layout, table(rows, sight, { loss: LOSS.valueOf, loss_min: LOSS.lowOf, loss_max: LOSS.highOf, num_bad: (row) => row.numBad }));

  const hidden = isLog ? rows.filter((row) => row.loss !== null && row.loss <= 0).length : 0;
  setText(byId("loss-hint"), `mean over ranks${grain(rows, sight)}`);
  const notes = [];
  if (!rows.some((row) => row.loss !== null || row.numBad)) notes.push(missing(model, "loss", "No loss has been reported yet."));
  if (hidden) notes.push(`${plural(hidden, "point")} at or below zero cannot be drawn on a log scale.`);
  if (model.numOldAttempts) notes.push(`${plural(model.numOldAttempts, "older attempt")} not drawn.`);
  if (detailState() === "failed") notes.push("The daemon did not send these steps in detail. Retrying.");
  setNote(byId("loss-note"), notes.join(" "));
}

/** The range that also shows the other runs. */
function withRuns({ others, sight }, range, valueOf, isLog) {
  return others.reduce((widened, run) => widest(widened, valueRange(run.rows, sight, valueOf, valueOf, isLog)), range);
}

/** How many steps a visible point covers, as text; empty if one. */
function grain(rows, [from, to]) {
  let least = Infinity, most = 1;
  for (const { x, numSteps } of rows) {
    if (x < from || x > to) continue;
    least = Math.min(least, numSteps);
    most = Math.max(most, numSteps);
  }
  if (most === 1) return "";
  return least === 1 ? `; older points cover up to ${plural(most, "step")} each` : `; a point covers ${plural(most, "step")}`;
}

function drawNorm(scene) {
  const { model, rows, current, sight, half } = scene;
  const pauses = (row) => row.norm === null && !row.numBad;
  const hover = (row, fate) => `${stepName(row, fate)}\ngradient norm ${decimal(row.norm)}` + (row.numSteps > 1 ? `\n${decimal(row.normMin)} to ${decimal(row.normMax)}` : "");
  const ofParts = drawParts(model, rows, current, "norm", half, true);
  const groups = ofParts ? null : groupLines(scene, "group_norm", "gradient norm", true);
  const traces = ofParts ? ofParts.traces : curveTraces(scene, { ...NORM, hover, pauses });
  traces.push(...runLines(scene.others, "gradient norm", NORM.valueOf, true), ...(groups?.traces ?? []), badTrace(rows));
  const layout = baseLayout(sight);
  const [low, high] = ofParts ? [ofParts.low, ofParts.high] : [(row) => row.normMin, NORM.highOf];
  setScale(layout.yaxis, widest(withRuns(scene, valueRange(rows, sight, low, high, true), NORM.valueOf, true), groups?.range), true);
  layout.shapes = scene.shapes;
  draw("norm-chart", traces, layout, table(rows, sight, { grad_norm: NORM.valueOf, grad_norm_min: (row) => row.normMin, grad_norm_max: NORM.highOf }));
  drawGroupNames("norm-legend", groups, "whole model");
  const isEmpty = !rows.some((row) => row.norm !== null || row.numBad);
  setNote(byId("norm-note"), isEmpty ? missing(model, "gradients", "No gradient norm has been reported.") : "");
}

function drawRate(scene) {
  const { model, rows, current, sight } = scene;
  const hover = (row, fate) => `${stepName(row, fate)}\nlearning rate ${decimal(row.lr)}`;
  const ofParts = drawParts(model, rows, current, "lr", 0, false);
  const groups = ofParts ? null : groupLines(scene, "group_lr", "learning rate", false);
  const traces = ofParts?.traces ?? groups?.traces ?? curveTraces(scene, { ...RATE, hover });
  traces.push(...runLines(scene.others, "learning rate", RATE.valueOf, false));
  const layout = baseLayout(sight);
  const [low, high] = ofParts ? [ofParts.low, ofParts.high] : [RATE.lowOf, RATE.highOf];
  setScale(layout.yaxis, widest(withRuns(scene, valueRange(rows, sight, low, high, false), RATE.valueOf, false), groups?.range), false);
  layout.shapes = scene.shapes;
  draw("lr-chart", traces, layout, table(rows, sight, { lr: RATE.valueOf }));
  drawGroupNames("lr-legend", groups);
  const isEmpty = !rows.some((row) => row.lr !== null);
  setNote(byId("lr-note"), isEmpty ? missing(model, "lr", "No learning rate has been reported.") : "");
}

function legend({ model, rows, half, gaps, others, named }) {
  const names = partNames(model);
  const entries = names.map((name, number) => [`part${number % PART_COLOURS}`, name]);
  if (!names.length) entries.push(...(half ? [["line", `smooth, half-life ${plural(half, "step")}`], ["raw", "mean"]] : [["line", "mean"]]));
  if (!names.length) entries.push(["band", "minimum to maximum over ranks"]);
  if (named("validation").some(({ name }) => name === "loss")) entries.push(["validation", "validation loss"]);
  for (const { name, colour } of others) entries.push([`part${colour % PART_COLOURS}`, name]);
  const fates = new Set(byFate(rows, model.status.attempt, model.rollbacks()).map(([fate]) => fate));
  if (fates.has("earlier")) entries.push(["earlier", "earlier attempts"]);
  if (fates.has("undone")) entries.push(["undone", "undone by a rollback"]);
  if (model.rollbacks().length) entries.push(["rollback", "rolled back"]);
  if (model.sortedDecisions().some(({ kind, state, boundary }) => kind === "rollback" && state === "advised" && boundary !== null)) entries.push(["would", "would be rolled back"]);
  if (model.incidents.size) entries.push(["onset", "onset of an incident"]);
  if ([...model.incidents.values()].some((incident) => incident.opened_step !== incident.onset_step)) entries.push(["detected", "detected"]);
  if (model.findingsForTheRecord().length) entries.push(["record", "for the record"]);
  const numMissing = gaps.reduce((sum, { numSteps }) => sum + numSteps, 0);
  if (gaps.length) entries.push(["gap", numMissing ? `no reports of ${plural(numMissing, "step")}` : "no steps"]);
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
