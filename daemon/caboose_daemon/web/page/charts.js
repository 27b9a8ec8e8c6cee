/*
 * The three charts, drawn with plotly's SVG traces, which need no eval and so work under the page's content policy.
 *
 * Ranges are computed here: the charts share their steps (zooming one zooms all) and the values fit what is seen.
 * Marks lie on a second axis from 0 to 1, so that they keep their place on any scale: findings at the top, steps with
 * numbers that are not finite on the bottom line.
 */

import { attemptStarts, band, line, logTicks, segments, stepRange, valueRange } from "./curves.js";
import { byId, make, setNote, setText } from "./dom.js";
import { decimal, plural, whole } from "./format.js";

const SYMBOLS = { critical: "octagon", warning: "triangle-up", info: "circle" };
const MOST_LINES = 40;
const MOST_LABELS = 12;
const RETRY_MS = 3000;
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false, showTips: false };

const view = { steps: null, isLog: false };
let colours = null;
let onChange = () => {};

/** Connects the buttons and the theme; `redraw` is called when something is to be drawn anew. */
export function startCharts(redraw) {
  onChange = redraw;
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
  byId("reset-zoom").addEventListener("click", () => zoom(null));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours = null;
    onChange();
  });
}

let isPlotlyAsked = false;

/** Fetches plotly once the words and numbers are on the screen: it is large, and they need not wait for it. */
function askForPlotly() {
  if (isPlotlyAsked) return;
  isPlotlyAsked = true;
  const script = make("script");
  script.src = "static/plotly.min.js";
  script.addEventListener("load", () => onChange());
  script.addEventListener("error", () => {
    isPlotlyAsked = false;
    script.remove();
    setNote(byId("loss-note"), "The charts cannot be drawn: the daemon did not give their library. Trying again.");
    setTimeout(askForPlotly, RETRY_MS);
  });
  requestAnimationFrame(() => setTimeout(() => document.head.append(script)));
}

/** Draws everything; does nothing until plotly has arrived. */
export function drawCharts(model) {
  if (!window.Plotly) return askForPlotly();
  colours ??= readColours();
  const { rows } = model;
  const current = model.status.attempt;
  const steps = view.steps ?? stepRange(rows);
  byId("reset-zoom").hidden = view.steps === null;
  drawLoss(model, rows, current, steps);
  drawNorm(model, rows, current, steps);
  drawRate(model, rows, current, steps);
  legend(model, rows);
}

function drawLoss(model, rows, current, steps) {
  const has = (row) => row.loss !== null && (!view.isLog || row.loss > 0);
  const traces = [];
  for (const [isCurrent, part] of byAttempt(rows, current)) {
    const hasBand = (row) => row.lossMin !== null && (!view.isLog || row.lossMin > 0);
    traces.push(bandTrace(segments(part, hasBand), (row) => row.lossMin, (row) => row.lossMax, isCurrent));
    const hover = (row) => `${stepName(row)}<br>loss ${decimal(row.loss)}<br>${decimal(row.lossMin)} to ${decimal(row.lossMax)}`;
    traces.push(...lineTraces(segments(part, has), (row) => row.loss, hover, isCurrent));
  }
  traces.push(badTrace(rows), findingTrace(model, steps));
  const layout = baseLayout(steps);
  setScale(layout.yaxis, valueRange(rows, steps, (row) => row.lossMin, (row) => row.lossMax, view.isLog), view.isLog);
  layout.shapes = [...attemptShapes(rows), ...findingShapes(model)];
  layout.annotations = attemptLabels(rows);
  draw("loss-chart", traces, layout);

  const hidden = view.isLog ? rows.filter((row) => row.loss !== null && row.loss <= 0).length : 0;
  const widest = rows.reduce((most, row) => Math.max(most, row.numSteps), 1);
  setText(byId("loss-hint"), widest > 1 ? `mean over ranks; older points cover up to ${plural(widest, "step")} each` : "mean over ranks");
  const notes = [];
  if (!rows.some((row) => row.loss !== null || row.numBad)) notes.push(missing(model, "loss", "No loss has been reported yet."));
  if (hidden) notes.push(`${plural(hidden, "point")} at or below zero cannot be drawn on a log scale.`);
  if (model.numOldAttempts) notes.push(`${plural(model.numOldAttempts, "older attempt")} not drawn.`);
  setNote(byId("loss-note"), notes.join(" "));
}

function drawNorm(model, rows, current, steps) {
  const has = (row) => row.norm !== null && row.norm > 0;
  const pauses = (row) => row.norm === null && !row.numBad;
  const traces = [];
  for (const [isCurrent, part] of byAttempt(rows, current)) {
    const parts = segments(part, has, pauses);
    traces.push(bandTrace(parts, (row) => row.norm, (row) => row.normMax, isCurrent));
    const hover = (row) => `${stepName(row)}<br>gradient norm ${decimal(row.norm)}` + (row.numSteps > 1 ? `<br>at most ${decimal(row.normMax)}` : "");
    traces.push(...lineTraces(parts, (row) => row.norm, hover, isCurrent));
  }
  traces.push(badTrace(rows));
  const layout = baseLayout(steps);
  setScale(layout.yaxis, valueRange(rows, steps, (row) => row.norm, (row) => row.normMax, true), true);
  layout.shapes = findingShapes(model);
  draw("norm-chart", traces, layout);
  const isEmpty = !rows.some((row) => row.norm !== null || row.numBad);
  setNote(byId("norm-note"), isEmpty ? missing(model, "gradients", "No gradient norm has been reported.") : "");
}

function drawRate(model, rows, current, steps) {
  const traces = [];
  for (const [isCurrent, part] of byAttempt(rows, current)) {
    const hover = (row) => `${stepName(row)}<br>learning rate ${decimal(row.lr)}`;
    traces.push(...lineTraces(segments(part, (row) => row.lr !== null), (row) => row.lr, hover, isCurrent));
  }
  const layout = baseLayout(steps);
  setScale(layout.yaxis, valueRange(rows, steps, (row) => row.lr, (row) => row.lr, false), false);
  layout.shapes = findingShapes(model);
  draw("lr-chart", traces, layout);
  const isEmpty = !rows.some((row) => row.lr !== null);
  setNote(byId("lr-note"), isEmpty ? missing(model, "lr", "No learning rate has been reported.") : "");
}

function draw(id, traces, layout) {
  const element = byId(id);
  const isFirst = !element.classList.contains("js-plotly-plot");
  window.Plotly.react(element, traces, layout, CONFIG);
  if (!isFirst) return;
  element.on("plotly_relayout", (change) => {
    const range = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (range[0] !== undefined) zoom([Number(range[0]), Number(range[1])]);
  });
  element.on("plotly_doubleclick", () => zoom(null));
}

function zoom(steps) {
  view.steps = steps;
  onChange();
}

const isNarrow = () => document.documentElement.clientWidth < 560;

function baseLayout(steps) {
  const axis = { color: colours.muted, gridcolor: colours.line, zeroline: false, linecolor: colours.line };
  return {
    margin: { l: isNarrow() ? 50 : 56, r: 12, t: 10, b: 30 },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { family: "system-ui, sans-serif", size: 12, color: colours.muted },
    showlegend: false,
    hovermode: "closest",
    hoverdistance: 40,
    // On a touch screen dragging scrolls the page.
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    hoverlabel: { bgcolor: colours.card, bordercolor: colours.line, font: { color: colours.text, size: 12 }, align: "left" },
    xaxis: { ...axis, range: steps, showgrid: false, ticks: "outside", tickcolor: colours.line, nticks: isNarrow() ? 4 : 8, tickformat: ",d", separatethousands: true },
    yaxis: { ...axis, fixedrange: true, tickformat: "~g", nticks: 6, exponentformat: "e" },
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
  };
}

function setScale(axis, range, isLog) {
  axis.type = isLog ? "log" : "linear";
  axis.range = range ?? [0, 1];
  if (isLog) axis.tickvals = logTicks(axis.range);
}

/** Earlier attempts in one trace and muted, the current one on top. */
function byAttempt(rows, current) {
  const parts = [[false, rows.filter((row) => row.attempt !== current)], [true, rows.filter((row) => row.attempt === current)]];
  return parts.filter(([, part]) => part.length);
}

function bandTrace(parts, lowOf, highOf, isCurrent) {
  const colour = isCurrent ? colours.band : colours.earlierBand;
  return { ...band(parts.filter((part) => part.length > 1), lowOf, highOf), type: "scatter", mode: "lines", fill: "toself", fillcolor: colour, line: { width: 0, color: colour }, hoverinfo: "skip" };
}

/** The line, and a dot for a step whose neighbours have no value: a line alone would not show it. */
function lineTraces(parts, valueOf, hoverOf, isCurrent) {
  const colour = isCurrent ? colours.accent : colours.earlier;
  const { x, y, rows } = line(parts, valueOf);
  const alone = line(parts.filter((part) => part.length === 1), valueOf);
  return [
    { x, y, type: "scatter", mode: "lines", line: { color: colour, width: isCurrent ? 1.8 : 1.3 }, hovertext: rows.map((row) => (row ? hoverOf(row) : "")), hoverinfo: "text" },
    { x: alone.x, y: alone.y, type: "scatter", mode: "markers", marker: { color: colour, size: 4 }, hoverinfo: "skip" },
  ];
}

function badTrace(rows) {
  const bad = rows.filter((row) => row.numBad > 0);
  const hover = (row) => (row.numSteps > 1 ? `up to ${stepName(row)}<br>${plural(row.numBad, "step")} with NaN or infinity` : `${stepName(row)}<br>NaN or infinity`);
  return {
    x: bad.map((row) => row.step),
    y: bad.map(() => 0.025),
    yaxis: "y2",
    type: "scatter",
    mode: "markers",
    cliponaxis: false,
    marker: { symbol: "x", size: 8, color: colours.bad, line: { width: 1, color: colours.card } },
    hovertext: bad.map(hover),
    hoverinfo: "text",
  };
}

/** The numbers of the most urgent findings, as far as they do not cover each other. */
function labelled(findings, [from, to]) {
  const room = (to - from) * (isNarrow() ? 0.14 : 0.05);
  const chosen = [];
  for (const finding of findings) {
    const isFree = chosen.every((other) => Math.abs(other.onset_step - finding.onset_step) > room);
    if (isFree && chosen.length < MOST_LABELS) chosen.push(finding);
  }
  return new Set(chosen);
}

function findingTrace(model, steps) {
  const findings = model.sortedFindings();
  const withLabel = labelled(findings, steps);
  const edge = steps[1] - (steps[1] - steps[0]) * (isNarrow() ? 0.12 : 0.025);
  return {
    x: findings.map((finding) => finding.onset_step),
    y: findings.map(() => 0.965),
    yaxis: "y2",
    type: "scatter",
    mode: "markers+text",
    cliponaxis: false,
    text: findings.map((finding) => (withLabel.has(finding) ? ` #${finding.id} ` : "")),
    textposition: findings.map((finding) => (finding.onset_step > edge ? "middle left" : "middle right")),
    textfont: { color: colours.muted, size: 11 },
    marker: {
      symbol: findings.map((finding) => SYMBOLS[finding.severity] ?? "circle"),
      color: findings.map((finding) => colours[finding.severity] ?? colours.info),
      opacity: findings.map((finding) => (finding.is_open ? 1 : 0.7)),
      size: 11,
      line: { width: 1, color: colours.card },
    },
    hovertext: findings.map((finding) =>
      escape(`#${finding.id} ${finding.rule}, ${finding.severity}`) +
      `<br>attempt ${finding.attempt}, onset ${whole(finding.onset_step)}, detected ${whole(finding.detected_step)}, ${finding.is_open ? "open" : `until ${whole(finding.last_step)}`}`),
    hoverinfo: "text",
  };
}

/** A line at the onset, a dashed one where it was detected later, and a tint for as long as it lasted. */
function findingShapes(model) {
  return model.sortedFindings().slice(0, MOST_LINES).flatMap((finding) => {
    const colour = colours[finding.severity] ?? colours.info;
    const upright = (step, dash) => ({ type: "line", x0: step, x1: step, yref: "paper", y0: 0, y1: 1, line: { color: colour, width: 1, dash }, opacity: finding.is_open ? 0.9 : 0.5, layer: "below" });
    const shapes = [upright(finding.onset_step, "solid")];
    if (finding.detected_step !== finding.onset_step) shapes.push(upright(finding.detected_step, "dash"));
    if (finding.last_step > finding.onset_step) {
      shapes.push({ type: "rect", x0: finding.onset_step, x1: finding.last_step, yref: "paper", y0: 0, y1: 1, fillcolor: colour, opacity: finding.is_open ? 0.14 : 0.07, line: { width: 0 }, layer: "below" });
    }
    return shapes;
  });
}

function attemptShapes(rows) {
  const line = { color: colours.muted, width: 1, dash: "dot" };
  return attemptStarts(rows).slice(1).slice(-MOST_LINES).map(({ step }) => ({ type: "line", x0: step, x1: step, yref: "paper", y0: 0, y1: 1, line, layer: "below" }));
}

function attemptLabels(rows) {
  return attemptStarts(rows).slice(1).slice(-MOST_LABELS).map(({ attempt, step }) => ({
    x: step, y: 0.06, yref: "paper", text: `attempt ${attempt}`, textangle: -90, xanchor: "right", yanchor: "bottom", showarrow: false, font: { size: 11, color: colours.muted },
  }));
}

function legend(model, rows) {
  const entries = [["line", "mean"], ["band", "lowest to highest rank"]];
  if (rows.some((row) => row.attempt !== model.status.attempt)) entries.push(["earlier", "earlier attempts"]);
  if (model.findings.size) entries.push(["onset", "onset of a finding"]);
  if ([...model.findings.values()].some((finding) => finding.detected_step !== finding.onset_step)) entries.push(["detected", "detected"]);
  const numBad = rows.reduce((sum, row) => sum + row.numBad, 0);
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

function missing(model, what, otherwise) {
  const reason = model.status.blind[what];
  return reason ? `Cannot be seen: ${reason}` : otherwise;
}

const stepName = (row) => `step ${whole(row.step)}${row.attempt > 1 ? `, attempt ${row.attempt}` : ""}`;

/** Plotly reads some markup in its texts; what comes from the network has none. */
const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = { text: "text", muted: "muted", line: "line", card: "card", accent: "accent", band: "band", earlier: "earlier", earlierBand: "earlier-band", bad: "bad", critical: "critical", warning: "warning", info: "info" };
  return Object.fromEntries(Object.entries(names).map(([key, name]) => [key, style.getPropertyValue(`--${name}`).trim()]));
}

/* Storage may be forbidden; the choice then lasts as long as the page. */
function recall(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // see above
  }
}
