/*
 * How a chart is drawn: with plotly's SVG traces, which need no eval and so work under the page's content policy.
 *
 * Ranges are computed here: the charts share their steps (zooming one zooms all), and values fit the visible steps.
 */

import { band, line, logTicks } from "./curves.js";
import { byId, make, setNote } from "./dom.js";
import { decimal, plural, whole } from "./format.js";
import { tickLayout } from "./axis.js";
import { offerExport } from "./export.js";
import { axisKind, listenToKeys, zoomTo } from "./zooming.js";

const RETRY_MS = 3000;
export const PART_COLOURS = 6;
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false, showTips: false };

export let colours = null;
let isPlotlyAsked = false;

/** Calls `redraw` when the colours have changed. */
export function followTheme(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours = null;
    redraw();
  });
}

/** Whether charts can be drawn; if not, `redraw` is called once they can. */
export function isReady(redraw) {
  if (window.Plotly) colours ??= readColours();
  else askForPlotly(redraw);
  return Boolean(window.Plotly);
}

/** Runs plotly after text and numbers are on the screen: it is large, and they need not wait for it. */
function askForPlotly(redraw) {
  if (isPlotlyAsked) return;
  isPlotlyAsked = true;
  const script = make("script");
  script.src = byId("plotly").href; // already loading: the page's head lists it
  script.addEventListener("load", () => redraw());
  script.addEventListener("error", () => {
    isPlotlyAsked = false;
    script.remove();
    setNote(byId("loss-note"), "The charts cannot be drawn: their library did not load. Retrying.");
    setTimeout(() => askForPlotly(redraw), RETRY_MS);
  });
  requestAnimationFrame(() => setTimeout(() => document.head.append(script)));
}

/** Draws a chart; `rows` returns its numbers as a table, for an export. */
export function draw(id, traces, layout, rows = null) {
  const element = byId(id);
  const isFirst = !element.classList.contains("js-plotly-plot");
  window.Plotly.react(element, traces, layout, CONFIG);
  element.ariaLabel = (element.ariaLabel ?? "").replace(/ by \w+$/, ` by ${axisKind()}`);
  if (rows) offerExport(element, rows);
  if (!isFirst) return;
  element.on("plotly_relayout", (change) => {
    const range = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (range[0] !== undefined) zoomTo([Number(range[0]), Number(range[1])]);
  });
  element.on("plotly_doubleclick", () => zoomTo(null));
  listenToKeys(element);
}

export const isNarrow = () => document.documentElement.clientWidth < 560;

export function baseLayout(sight) {
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
    // A copy: plotly writes into the ranges it is given.
    xaxis: { ...axis, range: [...sight], showgrid: false, ticks: "outside", tickcolor: colours.line, separatethousands: true, ...tickLayout(axisKind(), sight, isNarrow() ? 4 : 8) },
    yaxis: { ...axis, fixedrange: true, tickformat: "~g", nticks: 6, exponentformat: "e" },
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
  };
}

export function setScale(axis, range, isLog) {
  axis.type = isLog ? "log" : "linear";
  axis.range = range ?? [0, 1];
  if (isLog) axis.tickvals = logTicks(axis.range);
}

export function bandTrace(parts, lowOf, highOf, fate) {
  const colour = fate === "current" ? colours.band : colours.earlierBand;
  return { ...band(parts.filter((part) => part.length > 1), lowOf, highOf), type: "scatter", mode: "lines", fill: "toself", fillcolor: colour, line: { width: 0, color: colour }, hoverinfo: "skip" };
}

/**
 * The line, and a dot for a step without neighbours, which a line would not show. If there is a smooth curve (values by
 * row), it is the line, and the raw one is faint behind it.
 */
export function lineTraces(parts, valueOf, hoverOf, fate, smooth = null, accent = colours.accent) {
  const colour = { current: accent, undone: colours.undone, earlier: colours.earlier }[fate];
  const pen = { color: colour, width: fate === "earlier" ? 1.3 : 1.8, dash: fate === "undone" ? "4px,2px" : "solid" };
  const { x, y, rows } = line(parts, valueOf);
  const alone = line(parts.filter((part) => part.length === 1), valueOf);
  const hover = { hovertext: rows.map((row) => (row ? hoverOf(row) + (smooth ? `<br>smooth ${decimal(smooth.get(row))}` : "") : "")), hoverinfo: "text" };
  const dots = { x: alone.x, y: alone.y, type: "scatter", mode: "markers", marker: { color: colour, size: 4 }, hoverinfo: "skip" };
  if (!smooth) return [{ x, y, type: "scatter", mode: "lines", name: fate, line: pen, ...hover }, dots];
  return [
    { x, y, type: "scatter", mode: "lines", name: `${fate}, raw`, line: { ...pen, width: 1 }, opacity: 0.4, hoverinfo: "skip" },
    { x, y: rows.map((row) => (row ? smooth.get(row) : null)), type: "scatter", mode: "lines", name: `${fate}, smooth`, line: { ...pen, width: pen.width + 0.6 }, ...hover },
    dots,
  ];
}

/** A stroke from the line to each value that stands out, with its size where one hovers over its tip: a trace, or none. */
export function spikeTraces(found, valueOf, fate, say = decimal) {
  if (!found.length) return [];
  const colour = { current: colours.accent, undone: colours.undone, earlier: colours.earlier }[fate];
  const x = [], y = [], hovertext = [];
  for (const [row, value] of found) {
    x.push(row.x, row.x, null);
    y.push(valueOf(row), value, null);
    hovertext.push("", `${say(value)} in one of ${plural(row.numSteps, "step")} up to ${stepName(row, fate)}`, "");
  }
  return [{ x, y, name: "spikes", type: "scatter", mode: "lines", line: { color: colour, width: 1.5 }, hovertext, hoverinfo: "text" }];
}

/** The visible rows as a table, made when it is asked for; `columns` are its numbers by their names. */
export function table(rows, [from, to], columns) {
  return () => {
    const names = Object.keys(columns);
    const isSeen = (row) => row.x >= from && row.x <= to;
    const cells = (row) => [row.attempt, row.firstStep, row.step, row.time ? new Date(row.time * 1000).toISOString() : null, ...names.map((name) => columns[name](row))];
    return [["attempt", "first_step", "step", "time", ...names], ...rows.filter(isSeen).map(cells)];
  };
}

/** The colour of a part, of a job with several models. */
export const partColour = (number) => [colours.accent, colours.warning, colours.ok, colours.bad, colours.critical, colours.info][number % PART_COLOURS];

export const stepName = (row, fate) => `step ${whole(row.step)}${row.attempt > 1 ? `, attempt ${row.attempt}` : ""}${fate === "undone" ? ", undone" : ""}`;

/** Why a chart is empty: the agent's reason, or that nothing was reported. */
export function missing(model, what, otherwise) {
  const reason = model.status.blind[what];
  return reason ? `Not monitored: ${reason}` : otherwise;
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = { text: "text", muted: "muted", line: "line", card: "card", accent: "accent", band: "band", earlier: "earlier", earlierBand: "earlier-band", undone: "undone", ok: "ok", bad: "bad", critical: "critical", warning: "warning", info: "info", phase0: "phase-data", phase1: "phase-forward", phase2: "phase-loss", phase3: "phase-backward", phase4: "phase-optimizer", phase5: "phase-other" };
  return Object.fromEntries(Object.entries(names).map(([key, name]) => [key, style.getPropertyValue(`--${name}`).trim()]));
}
