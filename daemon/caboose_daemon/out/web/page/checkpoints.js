/*
 * Saved states: checkpoints on disk, saved by Caboose or not, and snapshots in memory, each with its health.
 *
 * They are shown whether or not rollback is on: a manual restart also has to choose one.
 */

import { byId, glyph, keyed, make, setData, setNote, setText } from "./dom.js";
import { bytes, clock, decimal, duration, plural, whole } from "./format.js";

const FEW = 4;
const MARKS = { healthy: "ok", unproven: "unknown", tainted: "warning" };
const WORDS = { healthy: "healthy: no incident followed", unproven: "unproven: too recent to judge", tainted: "tainted: an incident began before it or just after" };
let showsAll = false;

export function startCheckpoints(redraw) {
  byId("saved-more").addEventListener("click", () => {
    showsAll = true;
    redraw();
  });
}

export function drawCheckpoints(model) {
  const saved = model.sortedSaved();
  const number = (kind) => saved.filter((entry) => entry.kind === kind).length;
  byId("saved-none").hidden = saved.length > 0;
  const snapshots = number("snapshot") ? `, ${plural(number("snapshot"), "snapshot")} in memory` : "";
  setText(byId("saved-hint"), saved.length ? `${whole(number("checkpoint"))} on disk${snapshots}` : "");
  const num = { snapshot: 0, checkpoint: 0 };
  const shown = showsAll ? saved : saved.filter(({ kind, is_best }) => (num[kind] += 1) <= FEW || is_best);
  keyed(byId("saved-list"), shown, ({ kind, name }) => `${kind} ${name}`, create, update);
  byId("saved-more").hidden = shown.length === saved.length;
  setText(byId("saved-more"), `Show ${whole(saved.length - shown.length)} older`);
  const healths = Object.keys(WORDS).filter((health) => saved.some((entry) => entry.health === health));
  setNote(byId("saved-words"), healths.map((health) => WORDS[health]).join(" · "));
}

function create({ kind, name }) {
  const place = make("span", "path", kind === "checkpoint" ? name : "in memory on every rank");
  place.title = place.textContent;
  return make("li", "saved", "", glyph("unknown"), make("strong"), make("span", "health"), make("span", "badge", "best"), make("span", "facts-line"), place, make("p", "note"));
}

function update(item, entry) {
  const [mark, what, health, best, facts, , note] = item.children;
  setData(item, "health", entry.health);
  setData(mark, "kind", MARKS[entry.health] ?? "unknown");
  setText(what, `${entry.kind} of step ${whole(entry.step)}`);
  setText(health, entry.health + (entry.validation === null ? "" : `, validation ${decimal(entry.validation)}`));
  best.hidden = !entry.is_best;
  setText(facts, factsOf(entry));
  facts.title = entry.time > 0 ? clock(entry.time) : "";
  setNote(note, entry.reason);
}

/** Age, size and origin, if known. */
function factsOf({ kind, time, num_bytes, is_ours }) {
  const age = Date.now() / 1000 - time;
  const parts = [];
  if (time > 0 && age >= 0 && age < 1e8) parts.push(`${duration(Math.max(1, Math.round(age)))} ago`);
  if (kind === "checkpoint") {
    parts.push(num_bytes ? bytes(num_bytes) : "size unknown");
    parts.push(is_ours ? "saved by Caboose" : "saved by the run");
  }
  return parts.join(" · ");
}
