/*
 * What the curves have in common: their axes, lines, bands and marks, as `chart.js` takes them.
 *
 * The charts share their steps (zooming one zooms all), and values fit the visible steps.
 */

import { band, line, logTicks } from "./curves.js";
import { showChart } from "./chart.js";
import { byId } from "./dom.js";
import { decimal, plural, whole } from "./format.js";
import { tickLayout } from "./axis.js";
import { offerExport } from "./export.js";
import { axisKind, listenToKeys, zoomTo } from "./zooming.js";

export const PART_COLOURS = 6;

export let colours = null;

/** Calls `redraw` when the colours have changed. */
export function followTheme(redraw) {
  colours = readColours();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours = readColours();
    redraw();
  });
}

/** Draws a chart; `rows` returns its numbers as a table, for an export. */
export function draw(id, traces, layout, rows = null) {
  const element = byId(id);
  const isFirst = !element.layout;
  showChart(element, traces, layout, { onRange: zoomTo, onReset: () => zoomTo(null) });
  element.ariaLabel = (element.ariaLabel ?? "").replace(/ by \w+$/, ` by ${axisKind()}`);
  if (rows) offerExport(element, rows);
  if (isFirst) listenToKeys(element);
}

export const isNarrow = () => document.documentElement.clientWidth < 560;

export function baseLayout(sight) {
  const axis = { color: colours.muted, gridcolor: colours.line, tickcolor: colours.line };
  return {
    margin: { l: isNarrow() ? 50 : 56, r: 12, t: 10, b: 30 },
    font: { size: 12 },
    hovermode: "closest",
    xaxis: { ...axis, range: [...sight], hasTicks: true, ...tickLayout(axisKind(), sight, isNarrow() ? 4 : 8) },
    yaxis: { ...axis, nticks: 6 },
  };
}

export function setScale(axis, range, isLog) {
  axis.type = isLog ? "log" : "linear";
  axis.range = range ?? [0, 1];
  if (isLog) axis.tickvals = logTicks(axis.range);
}

export function bandTrace(parts, lowOf, highOf, fate) {
  const colour = fate === "current" ? colours.band : colours.earlierBand;
  return { ...band(parts.filter((part) => part.length > 1), lowOf, highOf), mode: "lines", fill: "toself", fillcolor: colour, line: { width: 0, color: colour } };
}

/**
 * The line, and a dot for a step without neighbours, which a line would not show. If there is a smooth curve (values by
 * row), it is the line, and the raw one is faint behind it.
 */
export function lineTraces(parts, valueOf, hoverOf, fate, smooth = null, accent = colours.accent) {
  const colour = { current: accent, undone: colours.undone, earlier: colours.earlier }[fate];
  const pen = { color: colour, width: fate === "earlier" ? 1.3 : 1.8, dash: fate === "undone" ? "short" : "solid" };
  const { x, y, rows } = line(parts, valueOf);
  const alone = line(parts.filter((part) => part.length === 1), valueOf);
  const hover = { hovertext: rows.map((row) => (row ? hoverOf(row) + (smooth ? `\nsmooth ${decimal(smooth.get(row))}` : "") : "")) };
  const dots = { x: alone.x, y: alone.y, mode: "markers", marker: { color: colour, size: 4 } };
  if (!smooth) return [{ x, y, mode: "lines", name: fate, line: pen, ...hover }, dots];
  return [
    { x, y, mode: "lines", name: `${fate}, raw`, line: { ...pen, width: 1 }, opacity: 0.4 },
    { x, y: rows.map((row) => (row ? smooth.get(row) : null)), mode: "lines", name: `${fate}, smooth`, line: { ...pen, width: pen.width + 0.6 }, ...hover },
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
  return [{ x, y, name: "spikes", mode: "lines", line: { color: colour, width: 1.5 }, hovertext }];
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
