/* From rows to what a chart draws: segments without holes, bands, marks and ranges. No document. */

const LONGEST_PAUSE = 16;
/** Share of the values that set a range which outliers would spoil, and how far above them an outlier is. */
const USUAL = 0.97;
const OUTLIER = 4;
/** A remainder below this share of the step time is a rounding error. */
const ROUNDING = 1e-6;

/**
 * Runs of neighbouring rows of one attempt for which `has` is true; a gap in the data is never bridged. A row that
 * `pauses` is no gap: the value is only measured every few steps. Too many pauses in a row make a gap.
 */
export function segments(rows, has, pauses = () => false) {
  const found = [];
  let current = null;
  let before = null;
  let numPauses = 0;
  for (const row of rows) {
    if (before === null || row.attempt !== before.attempt || row.isAfterGap) current = null;
    numPauses = pauses(row) ? numPauses + 1 : 0;
    if (numPauses && numPauses < LONGEST_PAUSE) { /* neither drawn nor a gap */ }
    else if (!has(row)) current = null;
    else if (current) current.push(row);
    else found.push((current = [row]));
    before = row;
  }
  return found;
}

/** One trace's x and y through all segments, with gaps between them; `rows` has the row of each point. */
export function line(parts, valueOf) {
  const x = [], y = [], rows = [];
  for (const part of parts) {
    if (x.length) x.push(null), y.push(null), rows.push(null);
    for (const row of part) x.push(row.x), y.push(valueOf(row)), rows.push(row);
  }
  return { x, y, rows };
}

/** Closed outlines between low and high, one per segment. */
export function band(parts, lowOf, highOf) {
  const x = [], y = [];
  for (const part of parts) {
    if (x.length) x.push(null), y.push(null);
    for (const row of part) x.push(row.x), y.push(highOf(row));
    for (let i = part.length - 1; i >= 0; i -= 1) x.push(part[i].x), y.push(lowOf(part[i]));
  }
  return { x, y };
}

const MOST_SPIKES = 80;
const SPIKE = 4;
const NEIGHBOURS = 20;

/**
 * The rows with a lowest or highest value that stands out from its bucket as that of no neighbour does: a mean hides one
 * step of fifty, and a band is too pale for it. [row, value] pairs, the furthest out first; none among single steps.
 */
export function spikes(rows, [from, to], valueOf, lowOf, highOf, isLog) {
  const scale = isLog ? (value) => (value > 0 ? Math.log(value) : null) : (value) => value;
  const found = [];
  for (const edge of [lowOf, highOf]) {
    const far = [];
    for (const row of rows) {
      if (row.x < from || row.x > to || valueOf(row) === null || row.numSteps < 2) continue;
      const [value, mean] = [scale(edge(row)), scale(valueOf(row))];
      if (value !== null && mean !== null) far.push([row, edge(row), Math.abs(value - mean)]);
    }
    const usual = median(far.map(([, , distance]) => distance));
    found.push(...far.filter(([, , distance], place) => {
      if (!(distance > 0 && distance > usual)) return false; // half of them need no closer look
      const around = far.slice(Math.max(0, place - NEIGHBOURS), place + NEIGHBOURS + 1);
      return distance > SPIKE * median(around.map(([, , other]) => other));
    }));
  }
  return found.sort((a, b) => b[2] - a[2]).slice(0, MOST_SPIKES);
}

const median = (numbers) => numbers.sort((a, b) => a - b)[numbers.length >> 1] ?? 0;

/** The part of the axis shown when nothing is zoomed; `unit` is the least width of its edges. */
export function fullRange(rows, unit) {
  if (!rows.length) return [0, 1];
  let low = Infinity, high = -Infinity;
  for (const row of rows) (low = Math.min(low, row.x)), (high = Math.max(high, row.x));
  const room = Math.max(unit, (high - low) * 0.02);
  return [low - room, high + room];
}

/** The values' range over the visible rows, with room; in decades on a log axis. Null when there are none. */
export function valueRange(rows, [from, to], lowOf, highOf, isLog) {
  let low = Infinity, high = -Infinity;
  for (const row of rows) {
    if (row.x < from || row.x > to) continue;
    for (const value of [lowOf(row), highOf(row)]) {
      if (value === null || (isLog && value <= 0)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  if (low > high) return null;
  if (isLog) [low, high] = [Math.log10(low), Math.log10(high)];
  const least = isLog ? 0.05 : Math.max(Math.abs(high) * 0.01, 1e-12);
  const room = Math.max((high - low) * 0.08, least);
  return [low - room, high + room];
}

/** A rare value so far above the others that they would be flat does not set the range: twice what nearly all stay below. */
export function withoutOutliers(values, top) {
  const sorted = Float64Array.from(values).sort();
  const usual = sorted[Math.floor((sorted.length - 1) * USUAL)] ?? top;
  return top > OUTLIER * usual && usual > 0 ? 2 * usual : top;
}

/** Marks for a log axis: powers of ten, with 2 and 5 between them or even steps where the range is narrow. */
export function logTicks([low, high]) {
  const ticks = [];
  for (let decade = Math.floor(low); decade <= high; decade += 1) {
    for (const factor of [1, 2, 5]) ticks.push(factor * 10 ** decade);
  }
  const isSeen = (tick) => Math.log10(tick) >= low && Math.log10(tick) <= high;
  let seen = ticks.filter(isSeen);
  if (seen.length > 6) seen = seen.filter((tick) => Number.isInteger(Math.round(Math.log10(tick) * 1e9) / 1e9));
  while (seen.length > 6) seen = seen.filter((_, place) => place % 2 === 0);
  if (seen.length > 1) return seen;
  return [0.1, 0.5, 0.9].map((share) => Number((10 ** (low + (high - low) * share)).toPrecision(2)));
}

/** Where every drawn attempt begins. */
export function attemptStarts(rows) {
  const starts = [];
  for (const row of rows) {
    if (starts.at(-1)?.attempt !== row.attempt) starts.push({ attempt: row.attempt, x: row.x });
  }
  return starts;
}

/**
 * The last step of each attempt that is still in the weights; a missing attempt contributes nothing. A rollback in
 * attempt n makes attempt n + 1 continue from the target, so all steps of n and earlier after the target are undone.
 * `rollbacks` are oldest first.
 */
export function keptUntil(current, rollbacks) {
  const kept = new Map([[current, Infinity]]);
  const after = new Map(rollbacks.map((rollback) => [rollback.attempt + 1, rollback]));
  let least = Infinity;
  for (let attempt = current; after.has(attempt); attempt -= 1) {
    least = Math.min(least, after.get(attempt).target);
    kept.set(attempt - 1, least);
  }
  return kept;
}

/** The rows in three parts: abandoned attempts, steps undone by rollbacks, and steps in the current weights. */
export function byFate(rows, current, rollbacks) {
  const kept = keptUntil(current, rollbacks);
  const parts = { earlier: [], undone: [], current: [] };
  let before = null;
  for (const row of rows) {
    const fate = !kept.has(row.attempt) ? "earlier" : row.step <= kept.get(row.attempt) ? "current" : "undone";
    // The line of undone steps begins where it branches off.
    const leaves = fate === "undone" && before?.attempt === row.attempt && before.step <= kept.get(row.attempt);
    if (leaves) parts.undone.push(before);
    parts[fate].push(row);
    before = row;
  }
  return Object.entries(parts).filter(([, part]) => part.length);
}

/** The rows not repeated by a later attempt: one line over the steps, without overlap. */
export function surviving(rows) {
  const kept = [];
  let lowest = Infinity;
  for (let place = rows.length - 1; place >= 0; place -= 1) {
    const row = rows[place];
    if (row.step >= lowest) continue;
    lowest = row.step;
    kept.push(row);
  }
  return kept.reverse();
}

/**
 * The end of each phase of a row's step, in seconds from its start, and last the time no phase accounts for. An unknown
 * phase takes no time; if phases add up to more than the step, as means over ranks can, there is no remainder. Null if
 * the step time is unknown.
 */
export function stacked(row) {
  if (row.seconds === null) return null;
  let end = 0;
  const ends = row.phases.map((seconds) => (end += Math.max(0, seconds ?? 0)));
  return [...ends, row.seconds - end > ROUNDING * end ? row.seconds : end];
}
