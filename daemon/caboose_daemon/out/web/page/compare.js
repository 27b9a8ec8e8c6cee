/*
 * Other runs behind the shown one: chosen in a list, named in the address (`with=a,b`), loaded thinned and refreshed.
 *
 * A run is one line per chart: the steps that are in its weights, on its own axis, so that by time or tokens two runs
 * begin together.
 */

import { inHash, replaceInHash } from "./address.js";
import { get, jobPath } from "./api.js";
import { Placement } from "./axis.js";
import { line, segments, surviving } from "./curves.js";
import { byId, keyed, make, setNote, setText } from "./dom.js";
import { decimal, whole } from "./format.js";
import { FETCH_POINTS, toRow } from "./model.js";
import { toNamed } from "./named.js";
import { partColour } from "./plot.js";

export const MOST_RUNS = 5;
/** Places among the colours of parts, those that parameter groups rarely have first. */
const COLOURS = [3, 4, 5, 1, 2];
const REFRESH_MS = 15_000;
const MOST_LISTED = 200;

const runs = new Map();
let jobs = [];
let own = "";
let onChange = () => {};

export function startComparing(changed) {
  onChange = changed;
  byId("compare-filter").addEventListener("input", drawList);
  byId("compare-list").addEventListener("change", ({ target }) => choose(target.value, target.checked));
  const box = byId("compare");
  document.addEventListener("click", (event) => box.contains(event.target) || (box.open = false));
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !box.open) return;
    box.open = false;
    box.querySelector("summary").focus();
  });
  addEventListener("hashchange", followAddress);
  followAddress();
  setInterval(() => document.hidden || refresh(), REFRESH_MS);
}

/** The jobs that may be chosen: all but the shown one. */
export function offerRuns(known, name) {
  [jobs, own] = [known.filter(({ job }) => job !== name), name];
  byId("compare").hidden = !jobs.length && !runs.size;
  drawList();
}

/** The chosen runs that are loaded and known on this axis, in their order; each has a colour of its own. */
export function otherRuns(kind) {
  const loaded = [...runs.values()].filter(({ name, rows }) => rows && name !== own);
  for (const run of loaded) {
    if (run.laid === kind) continue;
    run.laid = kind;
    run.place = new Placement(run.rows, kind);
    const gaps = run.place.place(run.rows);
    for (const curve of run.named) run.place.placeNamed(curve.rows, gaps);
  }
  drawProblems(kind);
  return loaded.filter((run) => run.place.kind === kind);
}

/** Says which of the chosen runs are not drawn, and why. */
function drawProblems(kind) {
  const of = ({ name, rows, place, problem }) => problem || (rows && place?.kind !== kind ? `${name} reports no ${kind}.` : "");
  setNote(byId("compare-note"), [...runs.values()].map(of).filter(Boolean).join(" "));
}

/** The lines of a number of every other run. */
export function runLines(others, what, valueOf, isLog) {
  return others.map((run) => runLine(run, what, surviving(run.rows), valueOf, isLog));
}

/** The lines of a named curve of every other run that has it, and the rows they are of. */
export function namedRunLines(others, { source, name }) {
  const having = others.map((run) => [run, run.named.find((curve) => curve.source === source && curve.name === name)]).filter(([, curve]) => curve);
  const isDashed = source === "validation";
  return {
    traces: having.map(([run, curve]) => runLine(run, name, surviving(curve.rows), (row) => row.mean, false, isDashed)),
    rows: having.flatMap(([, curve]) => curve.rows),
  };
}

function runLine(run, what, kept, valueOf, isLog, isDashed = false) {
  const has = (row) => valueOf(row) !== null && (!isLog || valueOf(row) > 0);
  const pauses = (row) => valueOf(row) === null && !row.numBad;
  const { x, y, rows } = line(segments(kept, has, pauses), valueOf);
  const hovertext = rows.map((row) => (row ? `${run.name}\nstep ${whole(row.step)}\n${what} ${decimal(valueOf(row))}` : ""));
  return { x, y, name: `run ${run.name}`, mode: "lines", line: { color: partColour(run.colour), width: 1.4, dash: isDashed ? "dash" : "solid" }, hovertext };
}

function choose(name, isChosen) {
  if (isChosen && runs.size < MOST_RUNS) add(name);
  else runs.delete(name);
  replaceInHash("with", [...runs.keys()].join(","));
  drawList();
  onChange();
}

function add(name) {
  const used = new Set([...runs.values()].map(({ colour }) => colour));
  const colour = COLOURS.find((number) => !used.has(number));
  runs.set(name, { name, colour, rows: null, named: [], laid: "" });
  load(runs.get(name));
}

async function load(run) {
  try {
    const { steps, named } = await get(jobPath(run.name, `/series?points=${FETCH_POINTS}`));
    Object.assign(run, { rows: steps.map(toRow), named: toNamed(named), laid: "", problem: "" });
  } catch (problem) {
    run.problem = problem.status === 404 ? `${run.name} is not known.` : "";
  }
  onChange();
}

/** Loads the running ones again. */
function refresh() {
  for (const run of runs.values()) {
    const isRunning = jobs.some(({ job, state }) => job === run.name && state === "running");
    if (isRunning || !run.rows) load(run);
  }
}

function followAddress() {
  const wanted = inHash("with").split(",").filter(Boolean).slice(0, MOST_RUNS);
  for (const name of [...runs.keys()]) if (!wanted.includes(name)) runs.delete(name);
  for (const name of wanted) if (!runs.has(name)) add(name);
  onChange();
}

function drawList() {
  const wanted = byId("compare-filter").value.toLowerCase();
  const listed = jobs.map(({ job }) => job).filter((name) => name.toLowerCase().includes(wanted));
  const names = [...new Set([...runs.keys(), ...listed])].slice(0, MOST_LISTED);
  keyed(byId("compare-list"), names, (name) => name, createChoice, (element, name) => {
    const input = element.querySelector("input");
    input.checked = runs.has(name);
    input.disabled = !input.checked && runs.size >= MOST_RUNS;
  });
  setText(byId("compare-count"), runs.size ? ` ${runs.size}` : "");
}

function createChoice(name) {
  const input = Object.assign(make("input"), { type: "checkbox", value: name });
  return make("li", "", "", make("label", "", "", input, make("span", "", name)));
}
