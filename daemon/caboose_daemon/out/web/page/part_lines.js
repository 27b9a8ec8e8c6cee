/* One line for each part of a job with several models: a GAN's two, an actor and its critics. */

import { byFate, segments } from "./curves.js";
import { decimal } from "./format.js";
import { lineTraces, partColour, stepName } from "./plot.js";
import { smoothed } from "./smoothing.js";

const LABELS = { loss: "loss", norm: "gradient norm", lr: "learning rate" };

/** The names of the parts in their order; empty for a job with one model. */
export const partNames = (model) => (model.status.parts ?? []).map(({ name }) => name);

/** The lines of one number of every part, and the lowest and highest value of a row; null for a job with one model. */
export function drawParts(model, rows, current, what, half, isLog) {
  const names = partNames(model);
  if (!names.length) return null;
  const traces = names.flatMap((name, number) => linesOf(model, rows, current, { name, number, what, half, isLog }));
  const values = (row) => names.map((name) => row.parts?.[name]?.[what] ?? null).filter((value) => value !== null && (!isLog || value > 0));
  const bound = (pick) => (row) => { const found = values(row); return found.length ? pick(...found) : null; };
  return { traces, low: bound(Math.min), high: bound(Math.max) };
}

function linesOf(model, rows, current, { name, number, what, half, isLog }) {
  const valueOf = (row) => row.parts?.[name]?.[what] ?? null;
  const has = (row) => valueOf(row) !== null && (!isLog || valueOf(row) > 0);
  const pauses = (row) => valueOf(row) === null && !row.numBad; // a part may step more rarely than others
  const traces = [];
  for (const [fate, part] of byFate(rows, current, model.rollbacks())) {
    const parts = segments(part, has, pauses);
    const hover = (row) => `${name}\n${stepName(row, fate)}\n${LABELS[what]} ${decimal(valueOf(row))}`;
    const lines = lineTraces(parts, valueOf, hover, fate, half && smoothed(parts, valueOf, half), partColour(number));
    traces.push(...lines.map((trace) => ({ ...trace, meta: name })));
  }
  return traces;
}
