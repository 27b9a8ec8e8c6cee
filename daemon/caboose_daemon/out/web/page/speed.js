/*
 * Speed: throughput, and step time split into phases.
 *
 * Throughput is in tokens if the run reports them, else in samples, else in steps. The split is a stack of the mean step
 * time over ranks: the phases in order, and on top the unaccounted time. Its colours differ in lightness, and the list
 * below it names them in the stack's order with their shares.
 */

import { runLines } from "./compare.js";
import { band, byFate, segments, spikes, stacked, surviving, valueRange, withoutOutliers } from "./curves.js";
import { byId, keyed, make, setData, setNote, setText } from "./dom.js";
import { belief, compact, decimal, duration, plural } from "./format.js";
import { PHASES } from "./model.js";
import { bandTrace, baseLayout, colours, draw, lineTraces, missing, setScale, spikeTraces, stepName, table } from "./plot.js";
import { smoothed } from "./smoothing.js";

const LAYERS = [...PHASES, "other"];
const ROOM = 1.06;
/** Minimum share of the chart's height for a phase's label. */
const LABELLED = 0.13;

/** The unit of throughput, and its value in a row. */
function unit(rows) {
  if (rows.some((row) => row.tokens)) return { name: "tokens", of: (row) => row.tokens };
  if (rows.some((row) => row.samples)) return { name: "samples", of: (row) => row.samples };
  const of = ({ seconds, secondsMax }) => (seconds ? { mean: 1 / seconds, low: 1 / (secondsMax || seconds), high: 1 / seconds } : null);
  return { name: "steps", of };
}

export function drawThroughput(scene) {
  const { model, rows, sight, half, shapes } = scene;
  const { name, of } = unit(rows);
  const rates = new Map(rows.map((row) => [row, of(row)]));
  const has = (row) => rates.get(row) !== null;
  const mean = (row) => rates.get(row).mean;
  const [low, high] = [(row) => rates.get(row)?.low ?? null, (row) => rates.get(row)?.high ?? null];
  const traces = [];
  for (const [fate, part] of byFate(rows, model.status.attempt, model.rollbacks())) {
    const parts = segments(part, has);
    traces.push(bandTrace(parts, low, high, fate), ...spikeTraces(spikes(part, sight, (row) => rates.get(row)?.mean ?? null, low, high, false), (row) => rates.get(row).mean, fate, amount));
    const hover = (row) => `${stepName(row, fate)}\n${amount(mean(row))} ${name}/s` + (row.numSteps > 1 ? `\n${amount(low(row))} to ${amount(high(row))}` : "");
    traces.push(...lineTraces(parts, mean, hover, fate, half && smoothed(parts, mean, half)));
  }
  traces.push(...runLines(scene.others, `${name} per second`, (row) => of(row)?.mean ?? null, false));
  const layout = baseLayout(sight);
  const range = valueRange(rows, sight, low, high, false);
  setScale(layout.yaxis, range && [0, range[1] * ROOM], false);
  layout.yaxis.format = "compact";
  layout.shapes = shapes;
  const each = (pick) => (row) => rates.get(row)?.[pick] ?? null;
  draw("throughput-chart", traces, layout, table(rows, sight, { [`${name}_per_second`]: each("mean"), lowest: each("low"), highest: each("high") }));
  setText(byId("throughput-hint"), `${name} per second`);
  const isEmpty = !rows.some(has);
  const reason = name === "steps" ? "The run does not report the number of samples per step." : "";
  setNote(byId("throughput-note"), isEmpty ? missing(model, "phases", "No step time has been reported.") : reason);
}

const amount = (value) => (value >= 1e4 ? compact(Math.round(value)) : decimal(value));

export function drawPhases({ model, rows, sight, gapShapes }) {
  const kept = surviving(rows);
  const stacks = new Map(kept.map((row) => [row, stacked(row)]));
  const parts = segments(kept, (row) => stacks.get(row) !== null);
  const whole = (row) => stacks.get(row)?.at(-1) ?? null;
  const range = valueRange(kept, sight, whole, whole, false);
  const [scale, unitName] = range && range[1] < 1 ? [1000, "ms"] : [1, "s"];
  const edge = (place) => (row) => (place < 0 ? 0 : stacks.get(row)[place] * scale);
  const hover = (row) => [stepName(row), `step time ${duration(row.seconds)}`, ...shares(stacks.get(row)).map(([name, seconds, share]) => `${name} ${duration(seconds)} (${belief(share)})`).reverse()].join("\n");
  const isThere = LAYERS.map((_, place) => kept.some((row) => stacks.get(row) && width(stacks.get(row), place) > 0));
  const traces = LAYERS.map((name, place) => ({
    ...band(parts, edge(place - 1), edge(place)),
    name,
    mode: "lines",
    fill: "toself",
    fillcolor: colours[`phase${place}`],
    line: { width: isThere[place] ? 0.7 : 0, color: colours.card },
  }));
  const shown = parts.flat();
  const inSight = ({ x }) => x >= sight[0] && x <= sight[1];
  traces.push({ x: shown.map((row) => row.x), y: shown.map(edge(LAYERS.length - 1)), name: "step", mode: "lines", line: { width: 0, color: colours.muted }, hovertext: shown.map(hover) });
  const layout = baseLayout(sight);
  const all = shown.filter(inSight).map((row) => whole(row) * scale);
  const top = range ? withoutOutliers(all, range[1] * scale) * ROOM : 1;
  setScale(layout.yaxis, [0, top], false);
  layout.shapes = gapShapes;
  layout.annotations = labels(shown.filter(inSight), edge, top);
  layout.yaxis.ticksuffix = ` ${unitName}`;
  layout.hovermode = "x";
  layout.hoverdistance = 100;
  const columns = LAYERS.map((name, place) => [`${name}_seconds`, (row) => (stacks.get(row) ? width(stacks.get(row), place) : null)]);
  draw("phase-chart", traces, layout, table(kept, sight, { step_seconds: (row) => row.seconds, ...Object.fromEntries(columns) }));
  drawShares(shown.filter(inSight), stacks, isThere);
  const isEmpty = !shown.length;
  const isUnsplit = !isEmpty && !isThere.slice(0, -1).some(Boolean);
  const notes = isEmpty || isUnsplit ? [missing(model, "phases", isEmpty ? "No step time has been reported." : "The phases of a step are unknown.")] : [];
  const numAbove = all.filter((seconds) => seconds > top).length;
  if (numAbove) notes.push(`${plural(numAbove, "point")} above the chart, at most ${duration(Math.max(...all) / scale)}.`);
  if (kept.length < rows.length) notes.push("Repeated steps are shown from the last attempt.");
  setNote(byId("phase-note"), notes.join(" "));
}

/** Labels of the phases that have room for one, in the middle of the longest stretch without a gap. */
function labels(rows, edge, top) {
  const stretch = segments(rows, () => true).reduce((longest, part) => (part.length > longest.length ? part : longest), []);
  const row = stretch[Math.floor(stretch.length / 2)];
  if (!row) return [];
  return LAYERS.flatMap((name, place) => {
    const [low, high] = [edge(place - 1)(row), edge(place)(row)];
    if (high - low < LABELLED * top) return [];
    return { x: row.x, y: (low + high) / 2, text: name, showarrow: false, bgcolor: colours[`phase${place}`], borderpad: 2, font: { size: 11, color: inkOn(colours[`phase${place}`]) } };
  });
}

/** Black or white, whichever is readable on this colour (#rrggbb). */
function inkOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#10151c" : "#ffffff";
}

const width = (stack, place) => stack[place] - (place ? stack[place - 1] : 0);

/** [name, seconds, share] of every known phase, from the bottom up. */
function shares(stack) {
  const total = stack.at(-1);
  return LAYERS.map((name, place) => [name, width(stack, place), total ? width(stack, place) / total : 0]).filter(([, seconds]) => seconds > 0);
}

/** The phases, the topmost first, with their shares of the time of all visible steps. */
function drawShares(rows, stacks, isThere) {
  const sums = LAYERS.map((_, place) => rows.reduce((sum, row) => sum + width(stacks.get(row), place) * row.numSteps, 0));
  const total = sums.reduce((sum, value) => sum + value, 0);
  const entries = LAYERS.map((name, place) => ({ name, share: total ? sums[place] / total : null })).filter((_, place) => isThere[place]).reverse();
  keyed(
    byId("phase-legend"),
    entries,
    ({ name }) => name,
    ({ name }) => {
      const key = make("span", "key phase");
      setData(key, "phase", name);
      return make("li", "", "", key, make("span"));
    },
    (element, { name, share }) => setText(element.lastElementChild, `${name} ${share === null ? "" : belief(share)}`),
  );
}
