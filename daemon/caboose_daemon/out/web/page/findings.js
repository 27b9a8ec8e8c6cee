/* Findings for the record: no ticket and no incident, so they are shown small, below the incidents. */

import { byId, glyph, keyed, make, setData, setNote, setText } from "./dom.js";
import { clock, layerNames, plural, rankNames, whole } from "./format.js";

const MOST = 30;

/** open, recovering, ...; or how it ended. */
export function findingState({ is_open, state }) {
  if (is_open) return state;
  return state === "resolved" ? "resolved" : "ended with its attempt";
}

export function drawFindings(model) {
  const findings = model.findingsForTheRecord();
  const numOpen = findings.filter((finding) => finding.is_open).length;
  byId("record").hidden = !findings.length;
  setText(byId("record-hint"), `${plural(findings.length, "finding")}, ${whole(numOpen)} open`);
  keyed(byId("record-list"), findings.slice(0, MOST), (finding) => finding.id, create, update);
  setNote(byId("record-more"), findings.length > MOST ? `and ${whole(findings.length - MOST)} older` : "");
}

function create(finding) {
  const head = make("p", "record-head", "", glyph("info"), make("span", "rule", finding.rule), make("span", "when"));
  return make("li", "finding", "", head, make("p", "summary"));
}

function update(item, finding) {
  const [head, summary] = item.children;
  const { first, last } = finding;
  setData(item, "open", String(finding.is_open));
  setData(head.children[0], "kind", finding.severity);
  const state = findingState({ is_open: finding.is_open, state: last.state });
  setText(head.children[2], `step ${whole(finding.onset_step)} · ${state} · ${clock(finding.detected_time)}`);
  const places = [];
  if (first.ranks.length) places.push(rankNames(first.ranks));
  if (first.layers.length) places.push(layerNames(first.layers));
  const place = places.length ? ` (${places.join(", ")})` : "";
  setText(summary, `${finding.is_open ? last.summary : first.summary}${place}`);
}
