/*
 * What the page knows of one job: curve rows, findings, events and the latest status.
 *
 * A row is one step, or one bucket of steps when the daemon thinned the curve. At most MAX_ROWS are kept; beyond
 * that the caller loads a thinned curve again.
 */

import { numeric } from "./format.js";

export const MAX_ROWS = 4000;
export const FETCH_POINTS = 1000;
const MAX_EVENTS = 200;
const ORDER = { critical: 2, warning: 1, info: 0 };

const isBad = (number) => number !== null && !Number.isFinite(number);
const finite = (number) => (isBad(number) ? null : number);

/** A curve row from a row of /series or a live step. */
export function toRow(raw) {
  const loss = numeric(raw.loss);
  const norm = numeric(raw.grad_norm);
  const lossMin = numeric(raw.loss_min);
  const lossMax = numeric(raw.loss_max);
  const seen = [loss, norm, lossMin, lossMax].some(isBad) ? 1 : 0;
  return {
    attempt: raw.attempt,
    step: raw.step,
    loss: finite(loss),
    lossMin: finite(lossMin) ?? finite(loss),
    lossMax: finite(lossMax) ?? finite(loss),
    norm: finite(norm),
    normMax: finite(numeric(raw.grad_norm_max)) ?? finite(norm),
    lr: finite(numeric(raw.lr)),
    numSteps: raw.num_steps ?? 1,
    numBad: Math.max(raw.num_bad ?? 0, seen),
  };
}

export class JobModel {
  constructor(name) {
    this.name = name;
    this.status = null;
    this.rows = [];
    this.numOldAttempts = 0;
    this.findings = new Map();
    this.events = [];
    this.isLoaded = false;
    this._early = [];
    this._lastStep = new Map();
  }

  /** Takes a whole answer; live updates that came while it was on its way are put on top. */
  replace(status, series, findings) {
    this.status = status;
    this.rows = [];
    this._lastStep.clear();
    this.numOldAttempts = 0;
    this._dropOldAttempts(series);
    for (const raw of series) this._append(raw);
    this.findings = new Map(findings.map((finding) => [finding.id, finding]));
    this.events = status.events;
    this.isLoaded = true;
    const early = this._early;
    this._early = [];
    for (const [kind, data] of early) this.take(kind, data);
  }

  beginLoading() {
    this.isLoaded = false;
  }

  /** Takes one live update. */
  take(kind, data) {
    if (!this.isLoaded) {
      if (this._early.length < MAX_ROWS) this._early.push([kind, data]);
      return;
    }
    if (kind === "step") this._takeStep(data);
    else if (kind === "finding") this._takeFinding(data);
    else if (kind === "status") [this.status, this.events] = [data, data.events];
    else if (kind === "event" && !this._knows(data)) this.events = [...this.events, data].slice(-MAX_EVENTS);
  }

  get isFull() {
    return this.rows.length > MAX_ROWS;
  }

  /** The findings: open before closed, the worst and then the newest first. */
  sortedFindings() {
    const byUrgency = (a, b) => b.is_open - a.is_open || (a.is_open && ORDER[b.severity] - ORDER[a.severity]) || b.id - a.id;
    return [...this.findings.values()].sort(byUrgency);
  }

  /* Between two statuses, a second apart, steps and findings keep the last one true. */

  _takeStep(step) {
    this._append(step);
    const isNewer = step.attempt === this.status.attempt && step.step > this.status.step;
    if (isNewer) this.status = { ...this.status, step: step.step, loss: step.loss, last: step };
  }

  _takeFinding(finding) {
    this.findings.set(finding.id, finding);
    const open = this.sortedFindings().filter((other) => other.is_open);
    this.status = { ...this.status, num_open: open.length, health: open.length ? open[0].severity : "ok" };
  }

  _append(raw) {
    const last = this._lastStep.get(raw.attempt) ?? -1;
    if (raw.step <= last) return; // the loaded curve has it already
    this._lastStep.set(raw.attempt, raw.step);
    this.rows.push(toRow(raw));
  }

  _dropOldAttempts(series) {
    while (series.length > MAX_ROWS && series[0].attempt !== series.at(-1).attempt) {
      const oldest = series[0].attempt;
      series.splice(0, series.findIndex((row) => row.attempt !== oldest));
      this.numOldAttempts += 1;
    }
  }

  _knows(event) {
    return this.events.some((known) => known.time === event.time && known.kind === event.kind);
  }
}
