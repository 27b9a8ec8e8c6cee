/*
 * Smoothing of noisy curves: an exponential moving average without its usual bias towards the first value.
 *
 * Its half-life is a share of the visible steps, so a curve looks equally smooth at every zoom, and it is counted in
 * steps, so a bucket of fifty weighs as much as fifty points. It restarts in every segment: nothing is carried across
 * a NaN, a gap or an attempt's end. The raw curve stays visible.
 */

const SHARES = { light: 0.004, strong: 0.015 };
const LEAST = { light: 2, strong: 6 };

/** Half-life in steps; null without smoothing. */
export function halfLife(strength, [from, to]) {
  if (!(strength in SHARES)) return null;
  return Math.max(LEAST[strength], Math.round((to - from) * SHARES[strength]));
}

/** The smooth value of every row of these segments, by row. */
export function smoothed(parts, valueOf, half) {
  const values = new Map();
  for (const part of parts) {
    let sum = 0, weight = 0, before = null;
    for (const row of part) {
      const kept = before === null ? 0 : 0.5 ** ((row.step - before) / half);
      sum = sum * kept + valueOf(row) * row.numSteps;
      weight = weight * kept + row.numSteps;
      values.set(row, sum / weight);
      before = row.step;
    }
  }
  return values;
}
