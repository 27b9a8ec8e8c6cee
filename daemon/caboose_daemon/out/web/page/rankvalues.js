/*
 * The measures of ranks: for each, how far out a rank is, from when that needs attention, and its text. No DOM.
 *
 * Ranks are compared with each other: the median is the reference, the median distance from it (MAD) the usual
 * deviation. Both are robust against a few outliers.
 */

import { decimal, duration, inUnit, plural, whole } from "./format.js";

export const SILENT_SECONDS = 10;
export const STATE_NAMES = { live: "live", silent: "silent", failed: "failed", terminated: "terminated by a signal", left: "left", expected: "no report since the daemon restarted", absent: "no report yet" };
const URGENCY = ["failed", "silent", "absent", "expected"];
const SLOW = 1.2;
const FAR_MADS = 8;
const MANY_BEHIND = 3;

export const isNotFinite = (value) => typeof value === "string";

/** A rank's shown state: live without recent messages is silent. */
export function rankState(rank) {
  return rank.state === "live" && rank.silent_seconds >= SILENT_SECONDS ? "silent" : rank.state;
}

function middle(values) {
  const sorted = Float64Array.from(values).sort();
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}

function spread(values) {
  const median = middle(values);
  return { median, mad: median === null ? null : middle(values.map((value) => Math.abs(value - median))) };
}

/** Values common to all ranks; `named` has the rules that name each rank now. */
export function compare(ranks, named) {
  const live = ranks.filter((rank) => rank.state === "live");
  const numbers = (some, field) => some.map((rank) => rank[field]).filter((value) => typeof value === "number");
  let front = 0;
  for (const rank of live) front = Math.max(front, rank.step);
  const abreast = live.filter((rank) => front - rank.step < MANY_BEHIND);
  const extra = new Map(EXTRA.map(({ name }) => [name, middle(numbers(live, name))]));
  return { seconds: spread(numbers(live, "step_seconds")), loss: spread(numbers(abreast, "loss")), extra, front, named };
}

/** A value's deviation in MADs; a MAD of zero counts as a thousandth of the value. */
function mads(value, { median, mad }) {
  if (typeof value !== "number" || median === null) return null;
  return Math.abs(value - median) / Math.max(mad, 1e-3 * Math.abs(median), 1e-12);
}

const isHeard = (rank) => rank.state !== "absent";
const ratio = (rank, all) => (typeof rank.step_seconds === "number" && all.seconds.median ? rank.step_seconds / all.seconds.median : null);
const behind = (rank, all) => (isHeard(rank) ? Math.max(0, all.front - rank.step) : null);
const differs = (rank, all) => all.named.get(rank.rank)?.includes("replica_desync") ?? false;
/** A loss's deviation from the others'; one of an earlier step is not compared. */
function lossOff(rank, all) {
  if (isNotFinite(rank.loss)) return Infinity;
  return all.front - rank.step < MANY_BEHIND ? mads(rank.loss, all.loss) : null;
}

const times = (value) => (value === null ? "–" : `${value.toFixed(2)}× the median`);

/**
 * Each measure: `far` is a rank's deviation (more is worse, null is unknown), `share` its position on the scale from 0 to
 * 1, `isBad` whether it needs attention, `say` its text, and `ends` the labels of the scale.
 */
export const MEASURES = {
  state: {
    name: "State",
    worst: "Needs attention",
    far: (rank, all) => trouble(rank, all),
    share: () => 0,
    isBad: (rank, all) => trouble(rank, all) > 0,
    say: (rank, all) => sayState(rank, all),
    ends: null,
  },
  step_seconds: {
    name: "Step time",
    worst: "Slowest",
    far: ratio,
    share: (far) => (far - 0.8) / 0.7,
    isBad: (rank, all) => ratio(rank, all) >= SLOW && mads(rank.step_seconds, all.seconds) >= FAR_MADS,
    say: (rank, all) => `${duration(rank.step_seconds)}, ${times(ratio(rank, all))}`,
    ends: ["0.8× the median", "1.5× or more"],
  },
  loss: {
    name: "Loss",
    worst: "Furthest from the others",
    far: lossOff,
    share: (far) => far / FAR_MADS,
    isBad: (rank, all) => lossOff(rank, all) >= FAR_MADS,
    say: (rank, all) => sayLoss(rank, all),
    ends: ["at the median", `${FAR_MADS} MADs away or more`],
  },
  heard: {
    name: "Last seen",
    worst: "Longest silent",
    far: (rank) => (isHeard(rank) && !["left", "terminated"].includes(rank.state) ? rank.silent_seconds : null),
    share: (far) => Math.log1p(far) / Math.log1p(60),
    isBad: (rank) => rankState(rank) === "silent",
    say: (rank) => sayHeard(rank),
    ends: ["just now", "a minute ago or more"],
  },
  behind: {
    name: "Out of step",
    worst: "Furthest behind",
    far: (rank, all) => (differs(rank, all) ? 1e9 : 0) + (behind(rank, all) ?? 0),
    share: (far) => far / 10,
    isBad: (rank, all) => differs(rank, all) || behind(rank, all) >= MANY_BEHIND,
    say: (rank, all) => `${plural(behind(rank, all), "step")} behind${differs(rank, all) ? ", its replica differs" : ""}`,
    ends: ["not behind", "10 steps behind, or a different replica"],
  },
  lost: {
    name: "Lost reports",
    worst: "Most lost reports",
    far: (rank) => (isHeard(rank) ? rank.num_missed + rank.num_dropped : null),
    share: (far) => Math.log1p(far) / Math.log1p(100),
    isBad: (rank) => rank.num_missed + rank.num_dropped > 0,
    say: (rank) => `${whole(rank.num_missed)} missed, ${whole(rank.num_dropped)} dropped`,
    ends: ["none", "100 or more"],
  },
};

/** Measures from the daemon's table of columns; one is shown if a rank has a value of it. */
export const EXTRA = [];

export function addColumns(columns) {
  for (const column of columns) {
    if (column.scope !== "rank" || column.name in MEASURES) continue;
    EXTRA.push(column);
    MEASURES[column.name] = extraMeasure(column);
  }
}

/** A column with only a unit and a worst direction: compared with the median, never flagged. */
function extraMeasure({ name, label, unit, worst }) {
  const sign = worst === "low" ? -1 : 1;
  const apart = (value, median) => (worst === "apart" ? Math.abs(value - median) : sign * (value - median));
  const far = (rank, all) => {
    const median = all.extra.get(name) ?? null;
    return typeof rank[name] !== "number" || median === null ? null : Math.max(0, apart(rank[name], median) / Math.max(Math.abs(median), 1e-12));
  };
  return {
    name: label,
    worst: { low: "Lowest", high: "Highest", apart: "Furthest from the others" }[worst],
    far,
    share: (distance) => distance,
    isBad: () => false,
    say: (rank) => inUnit(rank[name], unit),
    ends: ["at the median or better", worst === "low" ? "zero" : "twice the median or more"],
  };
}

/** How much a rank needs attention; 0 if it does not. */
function trouble(rank, all) {
  const urgency = URGENCY.indexOf(rankState(rank));
  if (urgency >= 0) return 10 - urgency;
  if (isNotFinite(rank.loss)) return 5;
  if (all.named.has(rank.rank)) return 4;
  if (rank.agent_state === "disabled") return 3;
  return rank.num_missed || rank.num_dropped ? 1 : 0;
}

function sayState(rank, all) {
  const parts = [STATE_NAMES[rankState(rank)] ?? rank.state];
  if (rank.error) parts.push(rank.error);
  if (isNotFinite(rank.loss)) parts.push(`loss ${decimal(rank.loss)}`);
  if (all.named.has(rank.rank)) parts.push(`named by ${all.named.get(rank.rank).join(", ")}`);
  if (rank.agent_state === "disabled") parts.push("its agent is disabled");
  if (rank.agent_failures) parts.push(plural(rank.agent_failures, "agent failure"));
  const lost = (rank.num_missed ?? 0) + (rank.num_dropped ?? 0);
  if (lost && parts.length === 1) parts.push(`${plural(lost, "report")} lost`);
  return parts.join(", ");
}

function sayLoss(rank, all) {
  const off = lossOff(rank, all);
  if (off === Infinity) return decimal(rank.loss);
  return `${decimal(rank.loss)}, ${off === null ? "not compared" : `${off < 10 ? off.toPrecision(2) : Math.round(off)} MADs off`}`;
}

/** "just now", "34 s ago". */
export function sayHeard(rank) {
  if (!isHeard(rank) || rank.state === "expected") return "–";
  return rank.silent_seconds ? `${duration(rank.silent_seconds)} ago` : "just now";
}

/** The ranks furthest out, the worst first; for the state only those that need attention. */
export function furthest(ranks, measure, all) {
  const { far, isBad } = MEASURES[measure];
  const rated = ranks.map((rank) => [far(rank, all), rank]).filter(([value]) => value !== null && value > 0);
  const wanted = measure === "state" ? rated.filter(([, rank]) => isBad(rank, all)) : rated;
  return wanted.sort(([a, one], [b, two]) => (a === b ? 0 : b - a) || one.rank - two.rank).map(([, rank]) => rank);
}

/** Which rules name which ranks now. A rule that names most ranks is ignored. */
export function namedRanks(findings, world) {
  const named = new Map();
  for (const finding of findings) {
    if (!finding.is_open || finding.last.ranks.length * 2 > world) continue;
    for (const rank of finding.last.ranks) named.set(rank, [...(named.get(rank) ?? []), finding.rule]);
  }
  return named;
}
