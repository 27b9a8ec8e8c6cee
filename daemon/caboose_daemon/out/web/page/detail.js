/*
 * The steps of a zoomed range in detail, from the journal: the page itself has a thinned curve of the whole run.
 *
 * A range is requested shortly after it was chosen, with as much again around it, so that panning is smooth; an outdated
 * request is cancelled. Steps not loaded yet, and live steps since, are drawn from the whole curve. One range is kept, in
 * about POINTS rows.
 */

import { get, jobPath } from "./api.js";
import { toRow } from "./model.js";
import { toNamed } from "./named.js";

const POINTS = 2000;
const PAUSE_MS = 180;
const RETRY_MS = 3000;

let onChange = () => {};
let loaded = null;
let question = null;
let state = "overview";

/** `changed` is called when an answer arrives. */
export function startDetail(changed) {
  onChange = changed;
}

/** overview: as loaded with the page; loading, detail: of the range; failed: will be requested again. */
export const detailState = () => state;

/** The rows and named curves to draw for these steps now; requests finer ones if there may be any. */
export function rowsFor(model, steps, isAll) {
  if (isAll || !isThinned(model.rows, steps)) {
    drop();
    return { rows: model.rows, named: (...sources) => model.named.of(...sources) };
  }
  const wanted = windowAround(steps);
  if (isGoodEnough(loaded, model, wanted, steps)) {
    cancel();
    state = "detail";
  } else if (!question || !isGoodEnough(question, model, wanted, steps)) ask(model, wanted);
  const isFiner = loaded && loaded.job === model.name;
  return {
    rows: isFiner ? merged(model.rows, loaded.first, loaded.rows) : model.rows,
    named: (...sources) => model.named.of(...sources).map((curve) => (isFiner ? finer(curve) : curve)),
  };
}

/** A named curve with the window's rows in their place. */
function finer({ source, name, rows }) {
  const found = loaded.named.find((curve) => curve.source === source && curve.name === name);
  return { source, name, rows: found ? merged(rows, loaded.first, found.rows) : rows };
}

const isThinned = (rows, [from, to]) => rows.some((row) => row.numSteps > 1 && row.step >= from && row.step - row.numSteps < to);

function windowAround([from, to]) {
  const span = to - from;
  const first = Math.max(0, Math.floor(from - span / 2));
  const last = Math.ceil(to + span / 2);
  return { first, last, width: Math.ceil((last - first + 1) / POINTS) };
}

/** Whether a window, loaded or requested, covers the visible steps as finely as a new request would. */
function isGoodEnough(window, model, wanted, [from, to]) {
  if (!window || window.job !== model.name || window.base !== model.rows) return false;
  return window.first <= Math.max(0, from) && window.last >= to && window.width <= wanted.width;
}

function ask(model, { first, last, width }) {
  cancel();
  const asked = { job: model.name, base: model.rows, first, last, width, abort: new AbortController() };
  question = asked;
  state = "loading";
  asked.timer = setTimeout(() => load(asked), PAUSE_MS);
}

async function load(asked) {
  try {
    const path = jobPath(asked.job, `/series?points=${POINTS}&from=${asked.first}&to=${asked.last}`);
    const { steps, named } = await get(path, asked.abort.signal);
    if (question !== asked) return;
    loaded = { ...asked, rows: steps.map(toRow), named: toNamed(named) };
    [question, state] = [null, "detail"];
  } catch {
    if (question !== asked) return;
    state = "failed";
    asked.timer = setTimeout(() => load(asked), RETRY_MS);
  }
  onChange();
}

function cancel() {
  if (!question) return;
  clearTimeout(question.timer);
  question.abort.abort();
  question = null;
}

function drop() {
  cancel();
  [loaded, state] = [null, "overview"];
}

/** The whole curve with the window's rows in their place, attempt by attempt; later live steps follow. */
function merged(overview, first, rows) {
  const detail = grouped(rows);
  const whole = grouped(overview);
  const attempts = [...new Set([...whole.keys(), ...detail.keys()])].sort((a, b) => a - b);
  return attempts.flatMap((attempt) => {
    const around = whole.get(attempt) ?? [];
    const inside = detail.get(attempt);
    if (!inside) return around;
    const end = inside.at(-1).step;
    return [...around.filter((row) => row.step < first), ...inside, ...around.filter((row) => row.step > end)];
  });
}

function grouped(rows) {
  const groups = new Map();
  for (const row of rows) {
    if (!groups.has(row.attempt)) groups.set(row.attempt, []);
    groups.get(row.attempt).push(row);
  }
  return groups;
}
