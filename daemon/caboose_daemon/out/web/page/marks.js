/*
 * Marks on the curves: incidents, rollbacks, attempts, findings for the record, and non-finite numbers.
 *
 * Those of the loss use a second axis from 0 to 1, so that they keep their position on any scale: incidents at the top,
 * rollbacks below them with an arrow to their target, non-finite steps at the bottom.
 */

import { attemptStarts } from "./curves.js";
import { plural, whole } from "./format.js";
import { colours, isNarrow, stepName } from "./plot.js";

const SYMBOLS = { critical: "octagon", warning: "triangle-up", info: "circle" };
const MOST_LINES = 40;
const MOST_LABELS = 12;
const MOST_DOTS = 100;
const ROLLBACK_AT = 0.86;

export function badTrace(rows) {
  const bad = rows.filter((row) => row.numBad > 0);
  const hover = (row) => (row.numSteps > 1 ? `up to ${stepName(row)}\n${plural(row.numBad, "step")} with NaN or infinity` : `${stepName(row)}\nNaN or infinity`);
  return {
    x: bad.map((row) => row.x),
    y: bad.map(() => 0.025),
    yaxis: "y2",
    mode: "markers",
    cliponaxis: false,
    marker: { symbol: "x", size: 8, color: colours.bad, line: { width: 1, color: colours.card } },
    hovertext: bad.map(hover),
  };
}

/** The numbers of the most urgent incidents that do not overlap. */
function labelled(incidents, onset, room) {
  const chosen = [];
  for (const incident of incidents) {
    const isFree = chosen.every((other) => Math.abs(onset(other) - onset(incident)) > room);
    if (isFree && chosen.length < MOST_LABELS) chosen.push(incident);
  }
  return new Set(chosen);
}

/** One mark for each incident, with its number. */
export function incidentTrace(model, place, sight) {
  const incidents = model.sortedIncidents();
  const onset = ({ attempt, onset_step: step }) => place.at(attempt, step);
  const span = sight[1] - sight[0];
  const room = span * (isNarrow() ? 0.14 : 0.05);
  const withLabel = labelled(incidents, onset, room);
  const edge = sight[1] - span * (isNarrow() ? 0.12 : 0.025);
  const isFollowed = (incident) => incidents.some((other) => onset(other) > onset(incident) && onset(other) < onset(incident) + room);
  const until = (incident) => (incident.is_open ? incident.state : `${incident.state === "unresolved" ? "open at the end" : "resolved"} at ${whole(incident.closed_step)}`);
  return {
    x: incidents.map(onset),
    y: incidents.map(() => 0.965),
    name: "incidents",
    yaxis: "y2",
    mode: "markers+text",
    cliponaxis: false,
    text: incidents.map((incident) => (withLabel.has(incident) ? ` #${incident.number} ` : "")),
    textposition: incidents.map((incident) => (onset(incident) > edge || isFollowed(incident) ? "middle left" : "middle right")),
    textfont: { color: colours.muted, size: 11 },
    marker: {
      symbol: incidents.map((incident) => SYMBOLS[incident.severity] ?? "circle"),
      color: incidents.map((incident) => colours[incident.severity] ?? colours.info),
      opacity: incidents.map((incident) => (incident.is_open ? 1 : 0.7)),
      size: 11,
      line: { width: 1, color: colours.card },
    },
    hovertext: incidents.map((incident) =>
      `${incident.id} ${incident.rule}, ${incident.severity}\nattempt ${incident.attempt}, onset ${whole(incident.onset_step)}, detected ${whole(incident.opened_step)}, ${until(incident)}`),
  };
}

/** A small dot for each finding for the record. */
export function recordTrace(model, place) {
  const findings = model.findingsForTheRecord().slice(0, MOST_DOTS);
  return {
    x: findings.map((finding) => place.at(finding.attempt, finding.onset_step)),
    y: findings.map(() => 0.965),
    name: "record",
    yaxis: "y2",
    mode: "markers",
    cliponaxis: false,
    marker: { symbol: "circle", size: 6, color: colours.info, opacity: 0.7 },
    hovertext: findings.map((finding) => `${finding.rule}, for the record\nonset ${whole(finding.onset_step)}`),
  };
}

/** A mark at each rollback; a hollow one at each advised rollback. */
export function rollbackTrace(model, place) {
  const isMark = ({ kind, state, boundary }) => kind === "rollback" && boundary !== null && ["committed", "advised"].includes(state);
  const marks = model.sortedDecisions().filter(isMark).slice(0, MOST_DOTS);
  const verb = ({ state }) => (state === "committed" ? "rolled back" : "would roll back");
  return {
    x: marks.map((decision) => place.at(decision.attempt, decision.boundary)),
    y: marks.map(() => ROLLBACK_AT),
    name: "rollbacks",
    yaxis: "y2",
    mode: "markers",
    cliponaxis: false,
    marker: {
      symbol: marks.map(({ state }) => (state === "committed" ? "triangle-left" : "triangle-left-open")),
      color: colours.ok,
      size: 11,
      line: { width: 1.5, color: colours.ok },
    },
    hovertext: marks.map((decision) =>
      `${decision.id}: ${verb(decision)} to step ${whole(decision.target)} at step ${whole(decision.boundary)}` +
      (decision.trigger ? `\n${`for incident ${decision.trigger}`}` : "")),
  };
}

/** From each boundary to its target. */
export function rollbackArrows(model, place) {
  return model.rollbacks().slice(-MOST_LABELS).map(({ attempt, target, boundary }) => ({
    x: place.at(attempt, target), y: ROLLBACK_AT, xref: "x", yref: "y2", ax: place.at(attempt, boundary), ay: ROLLBACK_AT, axref: "x", ayref: "y2",
    text: "", showarrow: true, arrowhead: 2, arrowsize: 1, arrowwidth: 1.5, arrowcolor: colours.ok,
  }));
}

/** A line at the onset, a dashed one at a later detection, and a tint for its duration. */
export function incidentShapes(model, place) {
  return model.sortedIncidents().slice(0, MOST_LINES).flatMap((incident) => {
    const colour = colours[incident.severity] ?? colours.info;
    const at = (step) => place.at(incident.attempt, step);
    const upright = (step, dash) => ({ type: "line", x0: at(step), x1: at(step), yref: "paper", y0: 0, y1: 1, line: { color: colour, width: 1, dash }, opacity: incident.is_open ? 0.9 : 0.5, layer: "below" });
    const shapes = [upright(incident.onset_step, "solid")];
    if (incident.opened_step !== incident.onset_step) shapes.push(upright(incident.opened_step, "dash"));
    const last = model.membersNow(incident).reduce((step, member) => Math.max(step, member.last_step), incident.last_step);
    if (last > incident.onset_step) {
      shapes.push({ type: "rect", x0: at(incident.onset_step), x1: at(last), yref: "paper", y0: 0, y1: 1, fillcolor: colour, opacity: incident.is_open ? 0.14 : 0.07, line: { width: 0 }, layer: "below" });
    }
    return shapes;
  });
}

export function attemptShapes(rows) {
  const line = { color: colours.muted, width: 1, dash: "dot" };
  return attemptStarts(rows).slice(1).slice(-MOST_LINES).map(({ x }) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line, layer: "below" }));
}

export function attemptLabels(rows) {
  return attemptStarts(rows).slice(1).slice(-MOST_LABELS).map(({ attempt, x }) => ({
    x, y: 0.06, yref: "paper", text: `attempt ${attempt}`, textangle: -90, xanchor: "right", yanchor: "bottom", showarrow: false, font: { size: 11, color: colours.muted },
  }));
}

/** A tint where no step was reported, of the widest gaps; a reader must not take a hole for a calm stretch. */
export function gapShapes(gaps, place) {
  const wide = gaps.map(({ attempt, from, to }) => [place.at(attempt, from), place.at(attempt, to)]);
  return wide.sort((a, b) => (b[1] - b[0]) - (a[1] - a[0])).slice(0, MOST_LINES).map(([x0, x1]) => ({
    type: "rect", x0, x1, yref: "paper", y0: 0, y1: 1, fillcolor: colours.muted, opacity: 0.12, line: { width: 0 }, layer: "below",
  }));
}
