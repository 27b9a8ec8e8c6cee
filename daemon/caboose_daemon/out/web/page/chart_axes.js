/* Scales and ticks of a chart: from a value to a pixel, and the numbers beside an axis. No document. */

import { whole } from "./format.js";

const UNITS = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"], [1, ""]];
/** Ticks beyond these sizes are written with an exponent. */
const LARGE = 1e5;
const SMALL = 1e-2;

/** Where a value is between two pixels, and the value of a pixel. The range of a log axis is in decades. */
export function scaleOf({ range: [low, high], type }, [start, end]) {
  const perUnit = (end - start) / (high - low || 1);
  const place = type === "log" ? Math.log10 : (value) => value;
  const value = type === "log" ? (decades) => 10 ** decades : (plain) => plain;
  return { at: (number) => start + (place(number) - low) * perUnit, valueAt: (pixel) => value(low + (pixel - start) / perUnit) };
}

/** The ticks of an axis as [value, text], at most `most` unless the axis lists them. */
export function ticksOf(axis, most) {
  const { tickvals, ticktext } = axis;
  if (!tickvals) return evenTicks(axis, most);
  const isSeen = seenIn(axis);
  const texts = ticktext ?? texted(tickvals, null, axis);
  return tickvals.map((value, place) => [value, texts[place]]).filter(([value]) => isSeen(value));
}

function seenIn({ range, type }) {
  const [low, high] = [Math.min(...range), Math.max(...range)];
  const room = (high - low) * 1e-9;
  return (value) => {
    const place = type === "log" ? Math.log10(value) : value;
    return place >= low - room && place <= high + room;
  };
}

function evenTicks(axis, most) {
  const [low, high] = axis.range;
  const every = niceStep((high - low) / Math.max(1, most), axis.format === "whole" ? 1 : 0);
  if (!(every > 0)) return [];
  const first = Math.ceil(low / every - 1e-9), last = Math.floor(high / every + 1e-9);
  const values = Array.from({ length: last - first + 1 }, (_, place) => (first + place) * every);
  const texts = texted(values, every, axis);
  return values.map((value, place) => [value, texts[place]]);
}

/** The least of 1, 2 and 5 times a power of ten that is not below this. */
function niceStep(step, least) {
  if (!(step > 0) || !Number.isFinite(step)) return 0;
  const decade = 10 ** Math.floor(Math.log10(step));
  const factor = [1, 2, 5, 10].find((one) => one * decade >= step * (1 - 1e-9)) ?? 10;
  return Math.max(factor * decade, least);
}

/** All ticks of an axis are written in one way: the largest decides on the unit or the exponent. */
function texted(values, every, { format, ticksuffix = "" }) {
  const most = values.reduce((size, value) => Math.max(size, Math.abs(value)), 0);
  const write = format === "whole" ? (value) => whole(Math.round(value)) : format === "compact" ? inUnitOf(most, every) : plainly(most, every);
  return values.map((value) => `${write(value)}${ticksuffix}`);
}

function inUnitOf(most, every) {
  const [size, unit] = UNITS.find(([least]) => most >= least) ?? UNITS.at(-1);
  const write = plainly(most / size, every === null ? null : every / size);
  return (value) => (value === 0 ? "0" : `${write(value / size)}${unit && `\u202f${unit}`}`);
}

function plainly(most, every) {
  if (every === null) return alone;
  const hasExponent = most >= LARGE || (most > 0 && most < SMALL);
  const exponent = hasExponent ? Math.floor(Math.log10(most) + 1e-9) : 0;
  const decimals = Math.max(0, exponent - Math.floor(Math.log10(every) + 1e-9));
  const write = (value) => (value / 10 ** exponent).toFixed(Math.min(decimals, 12));
  return (value) => (hasExponent && value !== 0 ? `${write(value)}e${exponent}` : hasExponent ? "0" : write(value));
}

/** A number that stands for itself: as short as it can be. */
function alone(value) {
  const size = Math.abs(value);
  if (value === 0 || (size >= SMALL / 10 && size < LARGE)) return String(Number(value.toPrecision(4)));
  return value.toExponential().replace(/^(-?\d(?:\.\d{1,3})?)\d*e\+?/, "$1e");
}
