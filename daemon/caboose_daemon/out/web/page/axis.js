/*
 * The x axis of the curves: steps, time since the run began, or the tokens or samples that it has seen.
 *
 * Each drawing lays a run out once: every row gets its `x`, and a mark asks where a step of an attempt is. Between two
 * known steps the place is interpolated. A later attempt continues with the tokens of the step that it began at; where
 * reports are missing, its steps count as many tokens as those before. Gaps are found here too, because they depend on
 * the axis: missing steps are a gap on each, a pause without a step is one by time.
 */

import { whole } from "./format.js";

export const KINDS = { step: "Step", time: "Time", tokens: "Tokens", samples: "Samples" };
const COUNTS = { tokens: "numTokens", samples: "numSamples" };
/** Missing steps that make a gap: more than this, and than this many usual distances of two reported steps. */
const FEWEST_MISSING = 3;
/** A pause on the time axis: longer than this, and than this many usual steps. */
const LEAST_PAUSE_SECONDS = 60;
const PAUSE_STEPS = 30;
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** The axes that these rows have numbers for. */
export function kindsOf(rows) {
  const has = (name) => rows.length > 0 && rows.every((row) => row[name] !== null);
  return Object.keys(KINDS).filter((kind) => kind === "step" || has(kind === "time" ? "time" : COUNTS[kind]));
}

/** One run on an axis. */
export class Placement {
  constructor(rows, kind) {
    this.kind = kindsOf(rows).includes(kind) ? kind : "step";
    this._knots = new Map();
    if (this.kind !== "step") this._learn(rows);
  }

  /** Where a step of an attempt is; of the last attempt that has steps, without one. */
  at(attempt, step) {
    if (this.kind === "step") return step;
    const knots = this._knots.get(attempt) ?? [...this._knots.values()].at(-1);
    return knots ? interpolated(knots, step) : 0;
  }

  /** Gives each row its place, and says which ones come after a gap; returns the gaps. */
  place(rows) {
    const stride = usual(rows, (row, before) => row.firstStep - before.step);
    const pace = this.kind === "time" ? usual(rows, (row, before) => (row.firstTime - before.time) / stride) : Infinity;
    const gaps = [];
    let before = null;
    for (const row of rows) {
      row.x = this.at(row.attempt, row.step);
      row.isAfterGap = before?.attempt === row.attempt && isGap(before, row, stride, pace);
      if (row.isAfterGap) gaps.push({ attempt: row.attempt, from: before.step, to: row.firstStep, numSteps: row.firstStep - before.step - 1 });
      before = row;
    }
    return gaps;
  }

  /** The same for the rows of a named curve, which are broken where the steps are. */
  placeNamed(rows, gaps) {
    let before = null;
    for (const row of rows) {
      row.x = this.at(row.attempt, row.step);
      row.isAfterGap = before?.attempt === row.attempt && gaps.some(({ attempt, from, to }) => attempt === row.attempt && before.step <= from && to <= row.step);
      before = row;
    }
  }

  _learn(rows) {
    const origin = rows[0]?.firstTime ?? 0;
    let counted = 0, before = null;
    for (const row of rows) {
      const isNew = row.attempt !== before?.attempt;
      if (isNew && this.kind !== "time") counted = before ? this.at(before.attempt, row.firstStep - 1) : 0;
      const each = this.kind === "time" ? 0 : row[COUNTS[this.kind]] / row.numSteps;
      if (!isNew) counted += each * Math.max(0, row.firstStep - before.step - 1);
      const first = this.kind === "time" ? row.firstTime - origin : counted + each;
      counted += each * row.numSteps;
      const last = this.kind === "time" ? row.time - origin : counted;
      const knots = this._knots.get(row.attempt) ?? [];
      this._knots.set(row.attempt, knots);
      knots.push([row.firstStep, first]);
      if (row.step > row.firstStep) knots.push([row.step, last]);
      before = row;
    }
  }
}

function isGap(before, row, stride, pace) {
  const missing = row.firstStep - before.step - 1;
  if (missing > Math.max(FEWEST_MISSING, FEWEST_MISSING * stride)) return true;
  return row.firstTime - before.time > Math.max(LEAST_PAUSE_SECONDS, PAUSE_STEPS * pace);
}

/** The median distance of neighbouring rows of an attempt. */
function usual(rows, distance) {
  const found = [];
  for (let place = 1; place < rows.length; place += 1) {
    if (rows[place].attempt === rows[place - 1].attempt) found.push(distance(rows[place], rows[place - 1]));
  }
  found.sort((a, b) => a - b);
  return found.length ? Math.max(found[found.length >> 1], 0) || 1 : 1;
}

function interpolated(knots, step) {
  let low = 0, high = knots.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (knots[middle][0] < step) low = middle + 1;
    else high = middle;
  }
  const [after, y] = knots[low];
  if (low === 0 || step >= after) return y;
  const [before, from] = knots[low - 1];
  return from + ((y - from) * (step - before)) / (after - before);
}

/** A place on the axis as text. */
export function placeName(kind, x) {
  if (kind === "time") return elapsed(x);
  const unit = kind === "step" ? "" : ` ${kind}`;
  return `${whole(Math.round(x))}${unit}`;
}

/** 5400 as "1 h 30 min". */
function elapsed(seconds) {
  const value = Math.max(0, Math.round(seconds));
  const place = UNITS.findIndex(([size]) => value >= size);
  if (place < 0) return "0\u202fs";
  const [[size, unit], smaller] = [UNITS[place], UNITS[place + 1]];
  const rest = smaller ? Math.floor((value % size) / smaller[0]) : 0;
  return `${Math.floor(value / size)}\u202f${unit}${rest ? ` ${rest}\u202f${smaller[1]}` : ""}`;
}

const NICE_SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000];

/** How the axis is labelled. */
export function tickLayout(kind, [low, high], most) {
  if (kind === "step") return { format: "whole", nticks: most };
  if (kind !== "time") return { format: "compact", nticks: most };
  const every = NICE_SECONDS.find((seconds) => (high - low) / seconds <= most) ?? 864000 * Math.ceil((high - low) / most / 864000);
  const tickvals = [];
  for (let at = Math.max(0, Math.ceil(low / every)) * every; at <= high; at += every) tickvals.push(at);
  return { tickvals, ticktext: tickvals.map(elapsed) };
}
