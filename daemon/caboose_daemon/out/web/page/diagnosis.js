/* The diagnosis of an incident: causes by confidence, the advice for each, and what is unknown. */

import { keyed, make, setData, setLines, setNote, setProse, setText } from "./dom.js";
import { belief } from "./format.js";

/** The first cause, if its confidence is at least that of "unknown". */
export function likelyCause(incident) {
  const first = incident.diagnosis?.causes[0];
  return first && first.confidence >= incident.diagnosis.unknown ? first : null;
}

export function makeDiagnosis() {
  const rest = make("div", "cause rest", "", share(), make("p", "note"));
  const hunts = make("div", "hunts", "", make("h4", "", "Found by rerunning the batch"), make("ul"));
  const section = make("div", "diagnosis", "", make("p", "note"), hunts, make("ol", "causes"), rest);
  section.append(make("div", "refusals", "", make("h4", "", "Unlikely to help"), make("ul")));
  section.append(make("div", "missing", "", make("h4", "", "Missing data"), make("ul")));
  section.append(make("div", "numbers", "", make("h4", "", "Numbers"), make("ul")));
  return section;
}

export function drawDiagnosis(section, diagnosis) {
  const [note, hunts, causes, rest, refusals, missing, numbers] = section.children;
  const { causes: ranked = [], unknown = 1 } = diagnosis ?? {};
  setNote(note, doubt(diagnosis));
  drawList(hunts, diagnosis?.hunts ?? [], setLines);
  keyed(causes, ranked, (cause) => cause.id, () => createCause(section), updateCause);
  expandFirst(section, causes);
  rest.hidden = !diagnosis;
  setShare(rest.firstElementChild, "unknown", unknown);
  setText(rest.lastElementChild, ranked.length ? "none of these, or a cause that is not monitored" : "");
  drawList(refusals, diagnosis?.refusals ?? [], setRefusals);
  drawList(missing, diagnosis?.missing ?? [], setLines);
  drawList(numbers, diagnosis?.numbers ?? [], setLines);
}

/** Shown above the causes if none is likely. */
function doubt(diagnosis) {
  if (!diagnosis) return "Not diagnosed.";
  if (!diagnosis.causes.length) return "No known cause explains the findings.";
  return diagnosis.causes[0].confidence < diagnosis.unknown ? "Cause unknown: the evidence for each of these is weak." : "";
}

/** The likeliest cause is expanded, unless the reader has expanded or collapsed one. */
function expandFirst(section, causes) {
  const first = causes.firstElementChild;
  if (!first || section.dataset.first === first.dataset.key) return;
  section.dataset.first = first.dataset.key;
  if (!section.dataset.touched) first.firstElementChild.open = true;
}

function drawList(part, items, fill) {
  part.hidden = !items.length;
  fill(part.lastElementChild, items);
}

function setRefusals(list, refusals) {
  keyed(
    list,
    refusals,
    ({ advice }) => advice,
    ({ advice }) => make("li", "", "", make("b", "", advice), make("span")),
    (item, { why }) => setProse(item.lastElementChild, `: ${why}`),
  );
}

function share() {
  return make("div", "share", "", make("span", "share-name"), make("span", "share-number"), make("span", "share-bar", "", make("i")));
}

function setShare(element, name, value) {
  const [title, number, bar] = element.children;
  setText(title, name);
  setText(number, belief(value));
  const width = `${(value * 100).toFixed(1)}%`;
  if (bar.firstElementChild.style.width !== width) bar.firstElementChild.style.width = width;
}

function createCause(section) {
  const summary = make("summary", "", "", share());
  summary.addEventListener("click", () => setData(section, "touched", "yes"));
  const parts = make("dl", "advice", "", part("for", "For", "ul"), part("against", "Against", "ul"), part("fix", "First fix", "p"), part("avoid", "Avoid", "p"), part("verify", "Verify", "p"));
  parts.children[2].lastElementChild.append(codeLine());
  return make("li", "cause", "", make("details", "", "", summary, parts));
}

function part(kind, name, tag) {
  const row = make("div", "", "", make("dt", "", name), make("dd", "", "", make(tag)));
  row.dataset.kind = kind;
  return row;
}

function updateCause(item, cause) {
  const [summary, parts] = item.firstElementChild.children;
  const [pro, con, fix, avoid, verify] = parts.children;
  setShare(summary.firstElementChild, cause.title, cause.confidence);
  for (const [row, lines] of [[pro, cause.for], [con, cause.against]]) {
    row.hidden = !lines.length;
    setLines(row.lastElementChild.firstElementChild, lines);
  }
  for (const [row, text] of [[fix, cause.first_fix], [avoid, cause.avoid], [verify, cause.verify]]) {
    row.hidden = !text;
    setProse(row.lastElementChild.firstElementChild, text);
  }
  const line = fix.lastElementChild.lastElementChild;
  line.hidden = !cause.code;
  setText(line.querySelector("code"), cause.code);
}

/** A line of code with a copy button. */
export function codeLine() {
  const code = make("code");
  const button = make("button", "copy", "Copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    setText(button, (await copied(code)) ? "Copied" : "Press Ctrl-C");
  });
  for (const leaving of ["blur", "mouseleave"]) button.addEventListener(leaving, () => setText(button, "Copy"));
  return make("div", "code-line", "", make("pre", "", "", code), button);
}

/** Browsers allow the clipboard on secure pages only; on others the line is selected, for the reader to copy. */
async function copied(code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(code);
    return false;
  }
}
