/*
 * Rollback on the page: what may be done, what was decided and why. What could be gone back to is in `checkpoints.js`.
 *
 * A decision that was only shown reads "would", everywhere. The newest one comes unfolded; what a reader folds or unfolds
 * stays so.
 */

import { byId, glyph, keyed, make, pairs, setData, setNote, setText } from "./dom.js";
import { clock, plural, whole } from "./format.js";

const FEW_DECISIONS = 5;
const MARKS = { committed: "ok", advised: "info", sent: "unknown", aborted: "warning", refused: "warning", expired: "warning", failed: "critical", exhausted: "critical" };
const STANDINGS = {
  off: "off",
  advise: "advises, does nothing",
  ready: "ready to act",
  sent: "a command is on its way",
  checking: "checking how the loss goes on",
  exhausted: "nothing left to try",
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
  drawDecisions(decisions);
}

function stateRows(model, state) {
  const rows = [["Mode in force", modeText(state)]];
  if (state.mode !== "off") rows.push(["Budget", `${plural(state.budget_left, "rollback")} left today`, state.budget_left ? "" : "warning"]);
  if (state.cool_until > model.status.step) rows.push(["Cool-down", `until step ${whole(state.cool_until)}`]);
  if (state.exhausted) rows.push(["Nothing left to try", state.exhausted, "warning"]);
  if (state.is_holding) rows.push(["Snapshots", "none is taken while something is wrong: it would push out a healthy one"]);
  for (const triage of state.triages) rows.push([`Incident ${triage.incident}`, [triage.verdict, ...triage.reasons, triage.note].filter(Boolean).join(" · ")]);
  if (state.continuity?.text) rows.push(["After the last", state.continuity.text, state.continuity.state === "broken" ? "warning" : ""]);
  return rows;
}

/** The mode, and who keeps it from being more. */
function modeText({ mode, job_mode: run, daemon_mode: daemon }) {
  if (mode === "auto") return "auto: both the run and the daemon allow it";
  const sides = daemon === null ? "" : ` (the run allows ${run}, the daemon ${daemon})`;
  return `${mode}: ${mode === "advise" ? "what would be done is shown, nothing is done" : "nothing is judged"}${sides}`;
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
  // The first line says again what stands above it.
  const said = decision.explanation.slice(1);
  while (lines.children.length > said.length) lines.lastElementChild.remove();
  said.forEach((line, place) => setText(lines.children[place] ?? lines.appendChild(make("li")), line));
  setText(when, `${decision.id} · ${clock(decision.time)}`);
}

/** What it is about, as a sentence that cannot be mistaken for something that was done. */
function whatOf({ state, summary }) {
  if (state === "advised") return `Would ${summary}`;
  const verb = { committed: "Done", sent: "On its way", failed: "Failed", exhausted: "Given up" }[state] ?? "Not done";
  return `${verb}: ${summary}`;
}
