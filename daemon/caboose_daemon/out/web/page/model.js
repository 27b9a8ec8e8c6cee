/*
 * The page's data of one job: curve rows, incidents, findings, decisions, saved states, events, the latest status.
 *
 * A row is one step, or one bucket of steps when the daemon thinned the curve. At most MAX_ROWS are kept; beyond
 * that the caller loads a thinned curve again.
 */

import { numeric } from "./format.js";
import { NamedCurves } from "./named.js";
import { RankTable } from "./ranktable.js";

export const MAX_ROWS = 4000;
export const FETCH_POINTS = 1000;
/** Phases of a step, in order; the remaining time is "other". */
export const PHASES = ["data", "forward", "loss", "backward", "optimizer"];
const MAX_EVENTS = 200;
const ORDER = { critical: 2, warning: 1, info: 0 };

const savedKey = ({ kind, name }) => `${kind} ${name}`;
const isBad = (number) => number !== null && !Number.isFinite(number);
const isLater = (one, other) => one.attempt > other.attempt || (one.attempt === other.attempt && one.step > other.step);
const eventKey = ({ attempt, step, kind, fields }) => JSON.stringify([attempt, step, kind, fields]);
const finite = (number) => (isBad(number) ? null : number);

/** Each event once, however many ranks declared it. */
const once = (events) => [...new Map(events.map((event) => [eventKey(event), event])).values()];

/** A rate with its extremes in the bucket; null if unknown. */
function rate(raw, name) {
  const mean = finite(numeric(raw[name]));
  return mean === null ? null : { mean, low: finite(numeric(raw[`${name}_min`])) ?? mean, high: finite(numeric(raw[`${name}_max`])) ?? mean };
}

/** The numbers of each part by its name, of a job with several models; null for one model. */
function partRows(parts) {
  if (!parts) return null;
  const numbers = ({ loss, grad_norm: norm, lr }) => ({ loss: finite(numeric(loss)), norm: finite(numeric(norm)), lr: finite(numeric(lr)) });
  return Object.fromEntries(Object.entries(parts).map(([name, part]) => [name, numbers(part)]));
}

/** A curve row from a row of /series or a live step. */
export function toRow(raw) {
  const loss = numeric(raw.loss);
  const norm = numeric(raw.grad_norm);
  const lossMin = numeric(raw.loss_min);
  const lossMax = numeric(raw.loss_max);
  const ofParts = Object.values(raw.parts ?? {});
  const isPartBad = ofParts.some((part) => part.num_bad || [numeric(part.loss), numeric(part.grad_norm)].some(isBad));
  const seen = isPartBad || [loss, norm, lossMin, lossMax].some(isBad) ? 1 : 0;
  return {
    attempt: raw.attempt,
    step: raw.step,
    loss: finite(loss),
    lossMin: finite(lossMin) ?? finite(loss),
    lossMax: finite(lossMax) ?? finite(loss),
    norm: finite(norm),
    normMin: finite(numeric(raw.grad_norm_min)) ?? finite(norm),
    normMax: finite(numeric(raw.grad_norm_max)) ?? finite(norm),
    lr: finite(numeric(raw.lr)),
    samples: rate(raw, "samples_per_second"),
    tokens: rate(raw, "tokens_per_second"),
    seconds: finite(numeric(raw.step_seconds)),
    secondsMax: finite(numeric(raw.step_seconds_max)) ?? finite(numeric(raw.step_seconds)),
    phases: PHASES.map((phase) => finite(numeric(raw[`${phase}_seconds`]))),
    parts: partRows(raw.parts),
    time: numeric(raw.time),
    firstStep: raw.first_step ?? raw.step,
    firstTime: numeric(raw.first_time ?? raw.time),
    numTokens: numeric(raw.num_tokens),
    numSamples: numeric(raw.num_samples),
    numSteps: raw.num_steps ?? 1,
    numBad: Math.max(raw.num_bad ?? 0, seen),
  };
}

export class JobModel {
  constructor(name) {
    this.name = name;
    this.status = null;
    this.ranks = new RankTable();
    this._facts = {};
    this.rows = [];
    this.named = new NamedCurves();
    this.numOldAttempts = 0;
    this.incidents = new Map();
    this.findings = new Map();
    this.decisions = new Map();
    this.saved = new Map();
    this.events = [];
    this.isLoaded = false;
    this.hasCurves = false;
    this.version = 0; // incremented by every change except the status
    this._early = [];
    this._declared = []; // validations since loading began, while it lasts
    this._since = null; // live steps since loading began, while it lasts
    this._lastStep = new Map();
  }

  /** Takes a whole answer except the curves; live updates that arrived meanwhile are applied on top. */
  replace({ findings, incidents, decisions, entries }) {
    this.version += 1;
    this.findings = new Map(findings.map((finding) => [finding.id, finding]));
    this.incidents = new Map(incidents.map((incident) => [incident.number, incident]));
    this.decisions = new Map(decisions.map((decision) => [decision.number, decision]));
    this.saved = new Map(entries.map((entry) => [savedKey(entry), entry]));
    this.isLoaded = true;
    this._takeEarly();
  }

  _takeEarly() {
    const early = this._early;
    this._early = [];
    for (const [kind, data] of early) this.take(kind, data);
  }

  /** Takes the whole curves; live steps that arrived meanwhile are applied on top. */
  replaceCurves(series, named = []) {
    this.rows = [];
    this.named.replace(named);
    this._lastStep.clear();
    this.numOldAttempts = 0;
    this._dropOldAttempts(series);
    for (const raw of [...series, ...this._since]) this._append(raw);
    for (const event of this._declared) this.named.takeEvent(event);
    [this._since, this._declared] = [null, []];
    const last = this.rows.at(-1);
    if (this.status && last?.attempt > this.status.attempt) this.status = { ...this.status, attempt: last.attempt };
    this.hasCurves = true;
    this.version += 1;
  }

  beginLoading() {
    this.isLoaded = false;
    [this._since, this._declared] = [[], []];
  }

  /** Takes one live update. */
  take(kind, data) {
    if (kind === "status") {
      this._takeStatus(data);
      return;
    }
    if (!this.isReady) {
      if (this._early.length < MAX_ROWS) this._early.push([kind, data]);
      return;
    }
    this.version += 1;
    if (kind === "step") this._takeStep(data);
    else if (kind === "finding") this.findings.set(data.id, data);
    else if (kind === "incident") this._takeIncident(data);
    else if (kind === "decision") this.decisions.set(data.number, data);
    else if (kind === "ledger") this._takeEntry(data);
    else if (kind === "event") this._takeEvent(data);
  }

  /** Whether there is something to draw: the lists are loaded and a status has arrived. */
  get isReady() {
    return this.isLoaded && this.status !== null;
  }

  get isFull() {
    return this.rows.length > MAX_ROWS || this.named.isLongerThan(MAX_ROWS);
  }

  /** The incidents: the worst open ones first, then what the run ended with, then the last resolved. */
  sortedIncidents() {
    const byUrgency = (a, b) =>
      b.is_open - a.is_open ||
      (b.state === "unresolved") - (a.state === "unresolved") ||
      (a.is_open ? ORDER[b.severity] - ORDER[a.severity] : b.closed_time - a.closed_time) ||
      (a.state === "acknowledged") - (b.state === "acknowledged") ||
      b.number - a.number;
    return [...this.incidents.values()].sort(byUrgency);
  }

  get openIncidents() {
    return this.sortedIncidents().filter((incident) => incident.is_open);
  }

  /** The newest decision first. */
  sortedDecisions() {
    return [...this.decisions.values()].sort((a, b) => b.number - a.number);
  }

  /** Snapshots and checkpoints, the newest first. */
  sortedSaved() {
    return [...this.saved.values()].sort((a, b) => b.step - a.step || (a.kind < b.kind ? -1 : 1));
  }

  /** Committed rollbacks, oldest first. */
  rollbacks() {
    const isDone = ({ kind, state, target }) => kind === "rollback" && state === "committed" && target !== null;
    return [...this.decisions.values()].filter(isDone).sort((a, b) => a.number - b.number);
  }

  /** Findings in no incident: open ones first, then the newest. */
  findingsForTheRecord() {
    const held = new Set();
    for (const incident of this.incidents.values()) for (const member of incident.members) held.add(member.episode);
    const isRecord = (finding) => !held.has(finding.id) && (finding.severity === "info" || !finding.is_open);
    return [...this.findings.values()].filter(isRecord).sort((a, b) => b.is_open - a.is_open || b.id - a.id);
  }

  /** An incident's current episodes: the stream sends an incident when it changes, its findings at every step. */
  membersNow(incident) {
    if (!incident.is_open) return incident.members;
    return incident.members.map((member) => {
      const finding = this.findings.get(member.episode);
      if (!finding) return member;
      return { ...member, is_open: finding.is_open, state: finding.last.state, last_step: finding.last_step };
    });
  }

  /* Between two statuses, one second apart, steps and incidents update the last one. */

  /** The first status of a stream has everything, later ones the changes. */
  _takeStatus({ is_whole, now, ranks, ...facts }) {
    const before = this.status;
    this._facts = is_whole ? facts : { ...this._facts, ...facts };
    this.ranks.take(ranks, now);
    this.status = { ...this._facts, ranks: this.ranks.rows };
    if (facts.events) this.events = once(facts.events);
    // One status serves all pages, so it may be a little older than the last step and the last incident.
    const isOlder = before && !is_whole && isLater(before, this.status);
    if (isOlder) for (const name of ["attempt", "step", "loss", "last"]) this.status[name] = before[name];
    if (this.isLoaded) {
      this._countOpen();
      this._takeEarly();
    }
  }

  _takeStep(step) {
    this._append(step);
    if (this._since && this._since.length < MAX_ROWS) this._since.push(step);
    if (isLater(step, this.status)) this.status = { ...this.status, attempt: step.attempt, step: step.step, loss: step.loss, last: step };
  }

  _takeEvent(event) {
    this.named.takeEvent(event);
    if (this._since && this._declared.length < MAX_ROWS) this._declared.push(event);
    if (!this._knows(event)) this.events = [...this.events, event].slice(-MAX_EVENTS);
  }

  _takeIncident(incident) {
    this.incidents.set(incident.number, incident);
    this._countOpen();
  }

  _countOpen() {
    const open = this.openIncidents;
    const health = this._facts.num_open ? "ok" : this._facts.health; // of a run that is over: what it ended with
    this.status = { ...this.status, num_open: open.length, health: open.length ? open[0].severity : health };
  }

  _takeEntry(entry) {
    if (entry.is_held) this.saved.set(savedKey(entry), entry);
    else this.saved.delete(savedKey(entry));
  }

  _append(raw) {
    const last = this._lastStep.get(raw.attempt) ?? -1;
    if (raw.step <= last) return; // the loaded curve has it already
    this._lastStep.set(raw.attempt, raw.step);
    this.rows.push(toRow(raw));
    this.named.takeStep(raw);
  }

  _dropOldAttempts(series) {
    while (series.length > MAX_ROWS && series[0].attempt !== series.at(-1).attempt) {
      const oldest = series[0].attempt;
      series.splice(0, series.findIndex((row) => row.attempt !== oldest));
      this.numOldAttempts += 1;
    }
  }

  /** Whether this event is listed: every rank may declare it. */
  _knows(event) {
    const key = eventKey(event);
    return this.events.some((known) => eventKey(known) === key);
  }
}
