/*
 * Rollback on the page: mode, decisions and their reasons. Saved states are in `checkpoints.js`.
 *
 * A decision that was only advised always reads "would". The newest one starts expanded; what a reader expands or
 * collapses stays so.
 */

import { byId, glyph, keyed, make, pairs, setData, setNote, setText } from "./dom.js";
import { clock, plural, whole } from "./format.js";
import { makeProjection, updateProjection } from "./projection.js";

const FEW_DECISIONS = 5;
const MARKS = { committed: "ok", advised: "info", sent: "unknown", aborted: "warning", refused: "warning", expired: "warning", failed: "critical", exhausted: "critical" };
const STANDINGS = {
  off: "off",
  advise: "advice only",
  ready: "ready to act",
  sent: "command sent",
  checking: "checking the loss after a rollback",
  exhausted: "exhausted",
};
let showsAll = false;

export function startRollback(redraw) {
  byId("decisions-more").addEventListener("click", () => {
    showsAll = true;
    redraw();
  });
}

export function drawRollback(model) {
  const state = model.status.rollback_state;
  const decisions = model.sortedDecisions();
  byId("rollback").hidden = state.mode === "off" && !decisions.length;
  if (byId("rollback").hidden) return;
  setText(byId("rollback-hint"), `${state.mode} · ${STANDINGS[state.standing] ?? state.standing}`);
  pairs(byId("rollback-list"), stateRows(model, state));
  drawProjections(state.triages.filter((triage) => triage.outlook));
  drawDecisions(decisions);
}

function stateRows(model, state) {
  const rows = [["Mode in force", modeText(state)]];
  if (state.mode !== "off") rows.push(["Budget", `${plural(state.budget_left, "rollback")} left today`, state.budget_left ? "" : "warning"]);
  if (state.cool_until > model.status.step) rows.push(["Cool-down", `until step ${whole(state.cool_until)}`]);
  if (state.exhausted) rows.push(["Exhausted", state.exhausted, "warning"]);
  if (state.is_holding) rows.push(["Snapshots", "paused while an incident is open, so that healthy ones are kept"]);
  for (const cordon of state.cordons) rows.push([`Rank ${cordon.rank}`, cordon.text, "critical"]);
  for (const triage of state.triages) rows.push([`Incident ${triage.incident}`, [triage.verdict, ...triage.reasons, triage.note].filter(Boolean).join(" · ")]);
  if (state.continuity?.text) rows.push(["After the last one", state.continuity.text, state.continuity.state === "broken" ? "warning" : ""]);
  return rows;
}

/** One picture for each open incident. */
function drawProjections(triages) {
  const list = byId("rollback-projections");
  list.hidden = !triages.length;
  keyed(list, triages, (triage) => triage.incident, makeProjection, (figure, triage) => updateProjection(figure, triage.outlook, triage));
}

/** The mode, and which side limits it. */
function modeText({ mode, job_mode: run, daemon_mode: daemon }) {
  if (mode === "auto") return "auto: both the run and the daemon allow it";
  const sides = daemon === null ? "" : ` (the run allows ${run}, the daemon ${daemon})`;
  return `${mode}: ${mode === "advise" ? "decisions are shown, not carried out" : "no decisions are made"}${sides}`;
}

/* Decisions */

function drawDecisions(decisions) {
  byId("decisions").hidden = !decisions.length;
  setText(byId("decisions-hint"), decisions.length ? whole(decisions.length) : "");
  const shown = showsAll ? decisions : decisions.slice(0, FEW_DECISIONS);
  keyed(byId("decisions-list"), shown, (decision) => decision.number, (decision) => createDecision(decision, decision === decisions[0]), updateDecision);
  const more = byId("decisions-more");
  more.hidden = shown.length === decisions.length;
  setText(more, `Show ${plural(decisions.length - shown.length, "older decision")}`);
}

function createDecision({ number }, isNewest) {
  const head = make("summary", "", "", glyph("info"), make("strong", "decision-what"), make("span", "badge"));
  const details = make("details", "", "", head, make("ul", "why-lines"), make("p", "note"));
  details.open = isNewest;
  return make("li", "decision", "", details, make("span", "unseen", `decision ${number}`));
}

function updateDecision(item, decision) {
  const [head, lines, when] = item.firstElementChild.children;
  setData(item, "state", decision.state);
  setData(head.children[0], "kind", MARKS[decision.state] ?? "unknown");
  setText(head.children[1], whatOf(decision));
  setText(head.children[2], decision.state);
  // The first line repeats the title.
  const texts = decision.explanation.slice(1);
  while (lines.children.length > texts.length) lines.lastElementChild.remove();
  texts.forEach((line, place) => setText(lines.children[place] ?? lines.appendChild(make("li")), line));
  setText(when, `${decision.id} · ${clock(decision.time)}`);
}

/** Its title, clear about whether it was done. */
function whatOf({ state, summary }) {
  if (state === "advised") return `Would ${summary}`;
  const verb = { committed: "Done", sent: "Sent", failed: "Failed", exhausted: "Exhausted" }[state] ?? "Not done";
  return `${verb}: ${summary}`;
}
