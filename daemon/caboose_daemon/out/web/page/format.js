/* Numbers, durations and names as text. Unknown is a dash; non-finite numbers are named. */

export const NONE = "–";
const STATES = {
  running: "running",
  silent: "silent",
  ended: "ended",
  cancelled: "cancelled",
  crashed: "crashed",
  lost: "lost",
  known: "no report since the daemon restarted",
};

/** A JSON number: the API writes non-finite numbers as strings; null is "not reported". */
export function numeric(value) {
  if (value === null || value === undefined) return null;
  return typeof value === "number" ? value : Number(value);
}

/** Four significant digits, or "NaN", "∞", a dash. */
export function decimal(value) {
  const number = numeric(value);
  if (number === null) return NONE;
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1e5 || size < 1e-3) return number.toExponential(2).replace("e+", "e");
  return number.toPrecision(4);
}

/** A configured number: without added zeros. */
export function setting(value) {
  const text = decimal(value);
  return /^-?\d*\.\d+$/.test(text) ? text.replace(/\.?0+$/, "") : text.replace(/\.?0*e/, "e");
}

/** Digits in groups of three. */
export function whole(value) {
  return value === null || value === undefined ? NONE : String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** 464512 as 464.5 K. */
export function compact(value) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]) {
    if (value >= size) return `${(value / size).toPrecision(4).replace(/\.?0+$/, "")}\u202f${unit}`;
  }
  return String(value);
}

/** 1494000000 as 1.49 GB. */
export function bytes(value) {
  for (const [size, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (value >= size) return `${(value / size).toPrecision(3)}\u202f${unit}`;
  }
  return `${value}\u202fB`;
}

/** Seconds in a suitable unit. */
export function duration(value) {
  const seconds = numeric(value);
  if (seconds === null || !Number.isFinite(seconds)) return NONE;
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)}\u202fµs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3)}\u202fms`;
  if (seconds < 10) return `${seconds.toFixed(1)}\u202fs`;
  if (seconds < 120) return `${Math.round(seconds)}\u202fs`;
  if (seconds < 7200) return `${Math.round(seconds / 60)}\u202fmin`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)}\u202fh`;
  return `${Math.round(seconds / 86400)}\u202fdays`;
}

/** A share as percent. */
export function percent(share) {
  if (share === null || share === undefined) return NONE;
  const value = share * 100;
  return `${value >= 99.5 ? Math.round(value) : value.toPrecision(2)}\u202f%`;
}

/** A value in the unit given by the table of columns. */
export function inUnit(value, unit) {
  const number = numeric(value);
  if (number === null || !Number.isFinite(number)) return decimal(value);
  if (unit === "seconds") return duration(number);
  if (unit === "bytes") return bytes(number);
  return unit === "ratio" ? percent(number) : decimal(number);
}

/** A confidence from 0 to 1 in whole percent; never 0 or 100 unless exact. */
export function belief(share) {
  const rounded = Math.round(share * 100);
  if (share > 0 && rounded === 0) return "<1\u202f%";
  return share < 1 && rounded === 100 ? ">99\u202f%" : `${rounded}\u202f%`;
}

/** A Unix time in local time, with the date if it is not today. */
export function clock(unix) {
  const when = new Date(unix * 1000);
  const time = when.toLocaleTimeString([], { hour12: false });
  return when.toDateString() === new Date().toDateString() ? time : `${when.toLocaleDateString()} ${time}`;
}

/** Text in which a number and its percent sign stay on one line. */
export const unbroken = (text) => text.replace(/(\d) %/g, "$1\u00a0%");

/** "rank 3", "ranks 0, 1, 2 and 5 more". */
export function rankNames(ranks, most = 8) {
  if (ranks.length === 1) return `rank ${ranks[0]}`;
  const rest = ranks.length > most ? ` and ${ranks.length - most} more` : "";
  return `ranks ${ranks.slice(0, most).join(", ")}${rest}`;
}

/** "layer a", "layers a, b and 5 more". */
export function layerNames(layers, most = 3) {
  if (layers.length === 1) return `layer ${layers[0]}`;
  const rest = layers.length > most ? ` and ${layers.length - most} more` : "";
  return `layers ${layers.slice(0, most).join(", ")}${rest}`;
}

/** "1 rank", "2 ranks". */
export function plural(number, noun) {
  return `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** A job's state as text. */
export function stateName(state) {
  return STATES[state] ?? state;
}
