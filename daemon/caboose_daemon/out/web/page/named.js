/*
 * The curves with names of their own: the user's metrics, validations, the rates and norms of parameter groups.
 *
 * A row is one step or one bucket, as in the model's own rows. A validation that every rank declares is one row.
 */

import { numeric } from "./format.js";

const finite = (number) => (number !== null && Number.isFinite(number) ? number : null);

/** A row of a named curve. */
function namedRow(attempt, step, value, low = value, high = value, numBad = 0, numSteps = 1) {
  const isBad = numeric(value) !== null && finite(numeric(value)) === null;
  const mean = finite(numeric(value));
  return { attempt, step, firstStep: step, mean, low: finite(numeric(low)) ?? mean, high: finite(numeric(high)) ?? mean, numSteps, numBad: Math.max(numBad, isBad ? 1 : 0) };
}

/** The curves of an answer of /series, as rows by source and name. */
export function toNamed(series) {
  return series.map(({ source, name, attempt, step, value, min, max, num_bad: numBad, num_steps: numSteps }) => ({
    source,
    name,
    rows: step.map((at, place) => namedRow(attempt[place], at, value[place], min[place], max[place], numBad[place], numSteps[place])),
  }));
}

export class NamedCurves {
  constructor() {
    this._curves = new Map();
  }

  /** Takes a whole answer. */
  replace(series) {
    this._curves = new Map(toNamed(series).map((curve) => [`${curve.source} ${curve.name}`, curve]));
  }

  /** The curves of these sources, in the order of their first value. */
  of(...sources) {
    return [...this._curves.values()].filter(({ source }) => sources.includes(source));
  }

  isLongerThan(most) {
    return [...this._curves.values()].some(({ rows }) => rows.length > most);
  }

  /** Takes the named numbers of a live step; a row of /series has none. */
  takeStep({ attempt, step, named }) {
    for (const [source, name, value] of named ?? []) this._append(source, name, attempt, step, value);
  }

  takeEvent({ kind, attempt, step, fields }) {
    if (kind !== "validation") return;
    for (const [name, value] of Object.entries(fields)) {
      const isNumber = typeof value === "number" || ["NaN", "Infinity", "-Infinity"].includes(value);
      if (isNumber) this._append("validation", name, attempt, step, value);
    }
  }

  _append(source, name, attempt, step, value) {
    const key = `${source} ${name}`;
    const curve = this._curves.get(key) ?? { source, name, rows: [] };
    this._curves.set(key, curve);
    const last = curve.rows.findLast((row) => row.attempt === attempt);
    if (!last || step > last.step) curve.rows.push(namedRow(attempt, step, value));
  }
}
