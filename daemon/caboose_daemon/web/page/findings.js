/* The list of findings: open ones first; what is over is greyed and kept. */

import { byId, glyph, keyed, make, setData, setNote, setText } from "./dom.js";
import { clock, plural, rankNames, whole } from "./format.js";

const FEW_CLOSED = 12;
let showsAll = false;

export function startFindings(redraw) {
  byId("findings-more").addEventListener("click", () => {
    showsAll = true;
    redraw();
  });
}

/** open, recovering, ...; what ended without its rule seeing the end says so. */
export function findingState(finding) {
  if (finding.is_open) return finding.last.state;
  return finding.last.state === "resolved" ? "resolved" : "ended with its attempt";
}

export function drawFindings(model) {
  const findings = model.sortedFindings();
  const numOpen = findings.filter((finding) => finding.is_open).length;
  const shown = showsAll ? findings : findings.slice(0, numOpen + FEW_CLOSED);
  setText(byId("findings-hint"), findings.length ? `${whole(numOpen)} open, ${whole(findings.length - numOpen)} over` : "");
  setNote(byId("findings-none"), findings.length ? "" : "Nothing has been found in this job.");
  keyed(byId("findings-list"), shown, (finding) => finding.id, create, update);
  const more = byId("findings-more");
  more.hidden = shown.length === findings.length;
  setText(more, `Show ${plural(findings.length - shown.length, "older finding")}`);
}

function create(finding) {
  const item = make("li", "finding");
  const severity = make("strong", "severity");
  const head = make("p", "finding-head", "", glyph("info"), severity, make("span", "rule", finding.rule), make("span", "number", `#${finding.id}`), make("span", "badge"));
  item.append(head, make("p", "summary"), make("p", "outcome"), make("p", "where"), make("p", "when"));
  return item;
}

function update(item, finding) {
  const [head, summary, outcome, where, when] = item.children;
  setData(item, "severity", finding.severity);
  setData(item, "open", String(finding.is_open));
  setData(head.children[0], "kind", finding.severity);
  setText(head.children[1], finding.severity);
  setText(head.children[4], findingState(finding));
  const { first, last } = finding;
  setText(summary, finding.is_open ? last.summary : first.summary);
  const hasOutcome = !finding.is_open && last.summary !== first.summary;
  setNote(outcome, hasOutcome ? last.summary : "");
  const places = [];
  if (first.ranks.length) places.push(rankNames(first.ranks));
  if (first.layers.length) places.push(`layer ${first.layers.slice(0, 4).join(", ")}${first.layers.length > 4 ? ` and ${first.layers.length - 4} more` : ""}`);
  if (first.phase) places.push(first.phase);
  setNote(where, places.join(" · "));
  const steps = `onset step ${whole(finding.onset_step)} · detected ${whole(finding.detected_step)} · last ${whole(finding.last_step)}`;
  setText(when, `${steps} · attempt ${finding.attempt} · ${clock(finding.detected_time)}`);
}
