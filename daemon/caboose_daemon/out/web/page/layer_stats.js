/* The statistics of a layer: labels and how each is drawn. No DOM. */

import { decimal, numeric, percent, setting } from "./format.js";

export const STATS = {
  grad_norm: { button: "Gradient", name: "gradient norm", isShare: false },
  update_ratio: { button: "Update ratio", name: "update / weight", isShare: false },
  weight_norm: { button: "Weights", name: "weight norm", isShare: false },
  grad_zeros: { button: "Zero gradients", name: "zeros in the gradient", isShare: true },
  activation_std: { button: "Activations", name: "activation std", isShare: false },
  dead: { button: "Dead units", name: "dead units", isShare: true, only: "only ReLU has them" },
  zeros: { button: "Zero activations", name: "zeros in the activations", isShare: true },
  saturated: { button: "Saturation", name: "saturated units", isShare: true, only: "only tanh and sigmoid have them" },
};

/** Cividis: perceptually uniform and safe for colour-blind readers. */
export const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const MOST_DECADES = 12;

/** A value as text: a share as percent, non-finite by name. */
export function valueText(stat, cell) {
  if (cell === null) return "unknown";
  if (typeof cell === "string") return cell === "NaN" ? "NaN" : "infinity";
  return STATS[stat].isShare ? (cell === 0 ? "0\u202f%" : percent(cell)) : decimal(cell);
}

/** The colour range over all cells: shares from 0 to 25, 50 or 100 %, else decades. Null for no cells. */
export function colourRange(stat, values) {
  if (STATS[stat].isShare) {
    const most = values.reduce((high, row) => row.reduce((top, cell) => (typeof cell === "number" ? Math.max(top, cell) : top), high), 0);
    return { low: 0, high: [0.25, 0.5].find((high) => most <= high) ?? 1, isLog: false, hasLess: false };
  }
  let low = Infinity, high = -Infinity, hasZero = false;
  for (const row of values) {
    for (const cell of row) {
      if (typeof cell !== "number") continue;
      if (cell <= 0) hasZero = true;
      else (low = Math.min(low, cell)), (high = Math.max(high, cell));
    }
  }
  if (high === -Infinity) return hasZero ? { low: -1, high: 0, isLog: true, hasLess: true } : null;
  const top = Math.log10(high);
  const bottom = Math.max(Math.log10(low), top - MOST_DECADES);
  const room = Math.max(0, 0.2 - (top - bottom)) / 2; // near-equal values do not use the full colour range
  return { low: bottom - room, high: top + room, isLog: true, hasLess: hasZero || Math.log10(low) < bottom };
}

/** A cell's position in that range; null if it has no colour. */
export function colourAt(cell, range) {
  if (typeof cell !== "number") return null;
  if (!range.isLog) return cell;
  return cell <= 0 ? range.low : Math.max(range.low, Math.log10(cell));
}

/** The ends of the range as text. */
export function rangeTexts(stat, range) {
  if (STATS[stat].isShare) return ["0\u202f%", `${range.high * 100}\u202f%`];
  return [`${range.hasLess ? "≤\u202f" : ""}${setting(10 ** range.low)}`, setting(10 ** range.high)];
}

/**
 * A layer's name in at most `most` characters: without "weight", then with initials for its first parts, as in
 * b.0.attn.qkv, then cut at the front, since the end is more specific.
 */
export function shortName(name, most) {
  if (name.length <= most) return name;
  const parts = name.replace(/\.weight$/, "").split(".");
  for (let place = 0; place < parts.length - 1 && parts.join(".").length > most; place += 1) {
    if (!/^\d+$/.test(parts[place])) parts[place] = parts[place][0] ?? "";
  }
  const short = parts.join(".");
  return short.length <= most ? short : `…${short.slice(1 - most)}`;
}

/** Ticks of a log axis over a range in decades: whole decades, or values in between if those are too few. */
export function decadeTicks([low, high]) {
  const every = Math.max(1, Math.ceil((high - low) / 4));
  const decades = [];
  for (let power = Math.ceil(low / every) * every; power <= high; power += every) decades.push(10 ** power);
  if (decades.length > 1) return decades;
  const between = [];
  for (let power = Math.floor(low); power <= high; power += 1) for (const part of [1, 2, 5]) between.push(part * 10 ** power);
  return between.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
}

/** "step 1 200", or the range of a column of several samples. */
export function sampleText({ samples }, column, whole) {
  const [first, last, attempt] = [samples.first_step[column], samples.step[column], samples.attempt[column]];
  const steps = first === last ? `step ${whole(last)}` : `steps ${whole(first)} to ${whole(last)}`;
  return attempt > 1 || samples.attempt.some((other) => other !== attempt) ? `${steps}, attempt ${attempt}` : steps;
}

/** The position of an attempt's step between the columns; null if no sample of that attempt is near. */
export function placeOf({ samples }, attempt, step) {
  let before = -1, after = -1;
  samples.attempt.forEach((of, column) => {
    if (of !== attempt) return;
    if (samples.step[column] <= step) before = column;
    else if (after < 0) after = column;
  });
  if (before < 0 && after < 0) return null;
  if (before < 0) return after - 0.5;
  if (after < 0) return samples.step[before] === step ? before : before + 0.5;
  if (samples.step[before] === step) return before;
  const from = samples.first_step[after];
  if (step >= from) return after;
  return before + 0.5;
}

export const isBad = (cell) => typeof cell === "string";
export const finiteOf = (cell) => (isBad(cell) ? null : numeric(cell));
