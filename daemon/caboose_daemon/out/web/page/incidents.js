/*
 * The incidents: one card each, with the diagnosis beside it.
 *
 * What a reader has expanded stays expanded across updates: elements stay with their incident and cause. Open incidents
 * start expanded, closed ones collapsed.
 */

import { hashWith, inHash } from "./address.js";
import { codeLine, drawDiagnosis, likelyCause, makeDiagnosis } from "./diagnosis.js";
import { byId, glyph, keyed, make, setData, setNote, setText } from "./dom.js";
import { findingState } from "./findings.js";
import { belief, clock, layerNames, plural, rankNames, unbroken, whole } from "./format.js";
import { drawTimeline, startTimeline } from "./timeline.js";

const FEW_RESOLVED = 8;
const MOST_MEMBERS = 6;
let showsAll = false;
let wanted = null;

export function startIncidents(redraw) {
  byId("incidents-more").addEventListener("click", () => {
    showsAll = true;
    redraw();
  });
  startTimeline((number) => {
    if (addressed() === number) want(number);
    else location.hash = hashWith("incident", number);
  });
  const want = (number) => {
    wanted = number;
    redraw();
  };
  let last = addressed();
  addEventListener("hashchange", () => {
    if (addressed() !== last) want(addressed()); // else only the layer changed
    last = addressed();
  });
  wanted = last;
}

/** The incident in the address, as in `#incident=3`. */
function addressed() {
  const number = Number(inHash("incident"));
  return Number.isInteger(number) && number > 0 ? number : null;
}

export function drawIncidents(model) {
  const incidents = model.sortedIncidents();
  const numOpen = incidents.filter((incident) => incident.is_open).length;
  const few = incidents.slice(0, numOpen + FEW_RESOLVED);
  if (wanted !== null && model.incidents.has(wanted) && !few.some(({ number }) => number === wanted)) showsAll = true;
  const shown = showsAll ? incidents : few;
  setText(byId("incidents-hint"), hint(incidents, numOpen));
  setNote(byId("incidents-none"), incidents.length ? "" : none(model));
  keyed(byId("incidents-list"), shown, (incident) => incident.number, create, (item, incident) => update(item, incident, model));
  const more = byId("incidents-more");
  more.hidden = shown.length === incidents.length;
  setText(more, `Show ${plural(incidents.length - shown.length, "older incident")}`);
  drawTimeline(model);
  if (wanted !== null) goTo(wanted, model);
}

function hint(incidents, numOpen) {
  if (!incidents.length) return "";
  const numLeft = incidents.filter(isLeft).length;
  return `${whole(numOpen)} open, ${numLeft ? `${whole(numLeft)} unresolved, ` : ""}${whole(incidents.length - numOpen - numLeft)} resolved`;
}

/** Whether the run ended with it: no rule saw it end. */
const isLeft = ({ state }) => state === "unresolved";

/** Expands an incident's card and scrolls to it, once. */
function goTo(number, model) {
  wanted = null;
  const card = byId("incidents-list").querySelector(`:scope > [data-key="${number}"]`);
  setNote(byId("incident-missing"), card ? "" : `Incident ${model.name}/${number} does not exist or was deleted.`);
  for (const other of byId("incidents-list").children) setData(other, "chosen", String(other === card));
  if (!card) return;
  card.querySelector(".why").open = true;
  setData(card, "touched", "yes");
  card.scrollIntoView({ block: "start" });
  card.focus({ preventScroll: true });
}

/** "No incident", with the number of judged steps and of rules that could not judge. */
function none(model) {
  const { num_steps, abstaining } = model.status;
  if (!num_steps) return "No incident. No step has been judged yet.";
  const numBlind = Object.keys(abstaining).length;
  const blind = numBlind ? ` ${plural(numBlind, "rule")} could not judge: see below.` : "";
  return `No incident in ${plural(num_steps, "step")}.${blind}`;
}

function create(incident) {
  const item = make("li", "incident");
  item.tabIndex = -1; // focused from the timeline
  const cut = incident.id.lastIndexOf("/");
  const id = make("span", "incident-id", "", make("span", "", incident.id.slice(0, cut)), make("b", "", incident.id.slice(cut)));
  id.title = incident.id;
  const head = make("h3", "incident-head", "", glyph("info"), make("strong", "severity"), make("span", "rule", incident.rule), id, make("span", "badge"));
  const signs = make("div", "signs", "", make("h4", "", "Found by"), make("ul", "members"), make("p", "note"));
  const where = make("p", "where", "", make("span", "", "first witness "), make("b"));
  const what = make("div", "what", "", make("p", "summary"), make("p", "outcome"), where, make("p", "when"), signs);
  const heading = make("summary", "", "", make("span", "fold-name", "Diagnosis"), make("span", "as-of"), make("span", "fold-hint"));
  const why = make("details", "why", "", heading, makeDiagnosis());
  const runbook = make("a", "runbook-link", "Runbook");
  runbook.href = incident.runbook.slice(1); // relative: the page may be below a proxy's path
  [runbook.target, runbook.rel] = ["_blank", "noopener"];
  what.append(runbook);
  why.open = incident.is_open;
  heading.addEventListener("click", () => setData(item, "touched", "yes"));
  item.append(head, make("div", "incident-parts", "", what, why), makeAck());
  return item;
}

function update(item, incident, model) {
  const [head, parts, ack] = item.children;
  const [what, why] = parts.children;
  const [summary, outcome, where, when, signs] = what.children;
  if (item.dataset.open === "false" && incident.is_open && !item.dataset.touched) why.open = true; // it reopened
  setData(item, "severity", incident.severity);
  setData(item, "state", incident.state);
  setData(item, "open", String(incident.is_open || (isLeft(incident) && !incident.acknowledged)));
  setData(head.children[0], "kind", incident.severity);
  setText(head.children[1], incident.severity);
  setText(head.children[4], incident.state);
  setText(summary, unbroken(incident.summary));
  setNote(outcome, outcomeOf(incident));
  where.hidden = !incident.witness;
  if (incident.witness) setText(where.lastElementChild, witnessOf(incident.witness));
  setText(when, timesOf(incident));
  drawSigns(signs, incident, model.membersNow(incident));
  drawAck(ack, incident);
  const [, asOf, hint] = why.firstElementChild.children;
  setText(asOf, incident.diagnosis ? `as of step ${whole(incident.diagnosis.step)}` : "");
  setText(hint, hintOf(incident));
  drawDiagnosis(why.lastElementChild, incident.diagnosis);
}

/** Why it closed, or who acknowledged it, or whose acknowledgement expired because it got worse. */
function outcomeOf({ is_open, state, reason, severity, acknowledged, outgrown }) {
  if (!is_open && !(state === "unresolved" && acknowledged)) return reason;
  if (!acknowledged && outgrown) {
    const was = outgrown.severity ? ` as ${outgrown.severity}` : "";
    return `acknowledgement expired: now ${severity}; acknowledged by ${outgrown.by || "unknown"}${was} (${outgrown.reason})`;
  }
  if (!acknowledged) return "";
  const who = acknowledged.by ? `acknowledged: ${acknowledged.by}` : "acknowledged";
  return `${who}, ${clock(acknowledged.time)}: ${acknowledged.reason}`;
}

/** The command that acknowledges an incident or undoes it: writing needs the token, which the page does not have. */
function makeAck() {
  return make("details", "ack", "", make("summary"), codeLine());
}

function drawAck(part, { id, is_open, state, acknowledged }) {
  part.hidden = !is_open && state !== "unresolved";
  const [name, line] = part.children;
  setText(name, acknowledged ? "Undo acknowledgement" : "Acknowledge");
  setText(line.querySelector("code"), `caboose ack ${id} ${acknowledged ? "--undo" : '--reason "..."'}`);
}

/** Where it was first visible, and how long before the loss moved. */
function witnessOf(witness) {
  const places = [];
  const host = witness.host && witness.ranks.length === 1 ? ` on ${witness.host}` : "";
  if (witness.ranks.length) places.push(rankNames(witness.ranks) + host);
  if (witness.layers.length) places.push(layerNames(witness.layers));
  if (witness.phase) places.push(`${witness.phase} phase`);
  const steps = witness.steps_before_loss;
  if (steps === 0) places.push("in the step where the loss moved");
  else if (steps !== null) places.push(`${plural(steps, "step")} before the loss moved`);
  return places.join(" · ");
}

function timesOf(incident) {
  const parts = [`onset step ${whole(incident.onset_step)}`, `detected ${whole(incident.opened_step)}`];
  if (!incident.is_open) parts.push(`${isLeft(incident) ? "open at the end" : "resolved"} ${whole(incident.closed_step)}`);
  if (incident.attempt > 1) parts.push(`attempt ${incident.attempt}`);
  if (incident.regimes.length) parts.push(`in ${incident.regimes.join(", ").replaceAll("_", " ")}`);
  if (incident.num_reopened) parts.push(`reopened ${plural(incident.num_reopened, "time")}`);
  if (incident.worst !== incident.severity) parts.push(`${incident.worst} at its worst`);
  parts.push(clock(incident.opened_time));
  return parts.join(" · ");
}

/** The diagnosis in short, for a collapsed card. */
function hintOf(incident) {
  const cause = likelyCause(incident);
  return cause ? `${cause.title}, ${belief(cause.confidence)}` : "cause unknown";
}

function drawSigns(signs, incident, members) {
  const [, list, more] = signs.children;
  const shown = few(members);
  keyed(list, shown, (member) => member.episode, createMember, (item, member) => updateMember(item, member, incident));
  setNote(more, shown.length < members.length ? `and ${whole(members.length - shown.length)} more closed` : "");
}

/** Of many episodes the open ones and the last of the others, in the order in which they joined. */
function few(members) {
  if (members.length <= MOST_MEMBERS) return members;
  const open = members.filter((member) => member.is_open);
  const over = members.filter((member) => !member.is_open);
  const chosen = new Set([...open, ...over.slice(-Math.max(1, MOST_MEMBERS - open.length))]);
  return members.filter((member) => chosen.has(member));
}

function createMember(member) {
  const row = make("p", "member", "", glyph(member.severity), make("span", "rule", member.rule), make("span", "since"), make("span", "state"));
  return make("li", "", "", row, make("p", "member-summary"));
}

function updateMember(item, member, incident) {
  const [row, summary] = item.children;
  setData(item, "open", String(member.is_open && incident.is_open));
  setData(row.children[0], "kind", member.severity);
  setText(row.children[2], `since ${whole(member.onset_step)}`);
  const wasOpen = isLeft(incident) && member.state !== "resolved";
  setText(row.children[3], wasOpen ? "open at the end" : findingState(member));
  setNote(summary, member.summary === incident.summary ? "" : unbroken(member.summary));
}
