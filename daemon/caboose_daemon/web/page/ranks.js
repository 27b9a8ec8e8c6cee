/* The ranks: a table, or for many of them a grid with a table of those that need a look. */

import { byId, glyph, keyed, make, setData, setNote, setText } from "./dom.js";
import { decimal, duration, plural, whole } from "./format.js";

export const SILENT_SECONDS = 10;
const MOST_ROWS = 64;
const FEW_ROWS = 16;
const MOST_CELLS = 8192;
const GLYPHS = { live: "ok", silent: "warning", failed: "critical", left: "info", expected: "unknown", absent: "unknown" };
const NAMES = { live: "live", silent: "silent", failed: "failed", left: "left", expected: "not heard since the daemon restarted", absent: "not heard yet" };

/** A rank's state as a person would say it: one that is live but says nothing is silent. */
export function rankState(rank) {
  return rank.state === "live" && rank.silent_seconds >= SILENT_SECONDS ? "silent" : rank.state;
}

/** Every rank of the world in order; those never heard of too. */
export function allRanks(status) {
  const known = new Map(status.ranks.map((rank) => [rank.rank, rank]));
  return Array.from({ length: Math.max(status.world, status.ranks.length) }, (_, rank) => known.get(rank) ?? { rank, state: "absent" });
}

/** "7 live, 1 silent". */
export function countStates(ranks) {
  const counts = new Map();
  for (const rank of ranks) counts.set(rankState(rank), (counts.get(rankState(rank)) ?? 0) + 1);
  return counts;
}

export function drawRanks(status) {
  const ranks = allRanks(status);
  const counts = countStates(ranks);
  setText(byId("ranks-hint"), [...counts].map(([state, number]) => `${whole(number)} ${NAMES[state] ?? state}`).join(", "));
  const isMany = ranks.length > MOST_ROWS;
  byId("rank-grid").hidden = !isMany;
  if (isMany) drawGrid(ranks);
  const troubled = isMany ? ranks.filter(needsALook).sort(byUrgency) : [];
  const shown = isMany ? troubled.slice(0, FEW_ROWS) : ranks;
  byId("rank-scroll").hidden = !shown.length;
  keyed(byId("rank-table").tBodies[0], shown, (rank) => rank.rank, createRow, updateRow);
  setNote(byId("rank-more"), isMany ? aboutTheRest(ranks, troubled, shown) : "");
}

function aboutTheRest(ranks, troubled, shown) {
  const hidden = ranks.length > MOST_CELLS ? `${plural(ranks.length - MOST_CELLS, "more rank")} without a square. ` : "";
  if (!troubled.length) return `${hidden}No rank needs a look. Point at a square for its numbers.`;
  const rest = troubled.length - shown.length;
  return `${hidden}The table lists ranks that are not live or lost reports${rest ? `; ${whole(rest)} more are like them` : ""}.`;
}

const URGENCY = ["failed", "silent", "absent", "expected"];
const urgency = (rank) => (URGENCY.indexOf(rankState(rank)) + 1) || URGENCY.length + 1;
const byUrgency = (a, b) => urgency(a) - urgency(b) || a.rank - b.rank;

const needsALook = (rank) => !["live", "left"].includes(rankState(rank)) || rank.num_missed > 0 || rank.num_dropped > 0 || rank.agent_state === "disabled";

function createRow(rank) {
  const row = make("tr", "", "", make("th", "", String(rank.rank)));
  row.firstElementChild.scope = "row";
  for (const name of ["left", "left state", "", "", "", "", "", ""]) row.append(make("td", name));
  row.children[2].append(glyph("unknown"), make("span"), make("small"));
  return row;
}

function updateRow(row, rank) {
  const state = rankState(rank);
  const [, host, stateCell, step, loss, seconds, silent, missed, dropped] = row.children;
  setData(row, "state", state);
  setText(host, rank.host ?? "–");
  const [mark, name, small] = stateCell.children;
  setData(mark, "kind", GLYPHS[state] ?? "unknown");
  setText(name, NAMES[state] ?? state);
  const agent = rank.agent_state === "disabled" ? "its agent turned itself off" : "";
  const failures = rank.agent_failures ? `${plural(rank.agent_failures, "agent failure")}` : "";
  setText(small, [rank.error, agent, failures].filter(Boolean).join("; "));
  setText(step, rank.step === undefined ? "–" : whole(rank.step));
  setText(loss, decimal(rank.loss));
  setData(loss, "bad", String(["NaN", "Infinity", "-Infinity"].includes(rank.loss)));
  setText(seconds, duration(rank.step_seconds));
  setText(silent, rank.silent_seconds === undefined ? "–" : duration(rank.silent_seconds));
  setText(missed, whole(rank.num_missed));
  setText(dropped, whole(rank.num_dropped));
  setData(missed, "some", String(rank.num_missed > 0));
  setData(dropped, "some", String(rank.num_dropped > 0));
}

let shownRanks = [];

function drawGrid(ranks) {
  const grid = byId("rank-grid");
  const shown = ranks.slice(0, MOST_CELLS);
  shownRanks = shown;
  grid.setAttribute("role", "img");
  grid.setAttribute("aria-label", `One square per rank: ${byId("ranks-hint").textContent}`);
  while (grid.children.length > shown.length) grid.lastElementChild.remove();
  while (grid.children.length < shown.length) grid.append(document.createElement("i"));
  shown.forEach((rank, place) => {
    const state = rankState(rank);
    const isBad = ["NaN", "Infinity", "-Infinity"].includes(rank.loss);
    setData(grid.children[place], "state", isBad && state === "live" ? "bad" : state);
  });
  if (grid.dataset.listens) return;
  grid.dataset.listens = "yes";
  grid.addEventListener("pointerover", (event) => {
    const place = [...grid.children].indexOf(event.target);
    if (place >= 0) setNote(byId("rank-detail"), describe(shownRanks[place]));
  });
}

function describe(rank) {
  const state = NAMES[rankState(rank)];
  if (rank.state === "absent") return `Rank ${rank.rank}: ${state}`;
  return `Rank ${rank.rank} on ${rank.host}: ${state}, step ${whole(rank.step)}, loss ${decimal(rank.loss)}, step time ${duration(rank.step_seconds)}, silent for ${duration(rank.silent_seconds)}`;
}
