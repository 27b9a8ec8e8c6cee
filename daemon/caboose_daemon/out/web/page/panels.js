/* The panels around the charts: headline, key numbers, monitor, events and settings. */

import { byId, keyed, make, pairs, setData, setText } from "./dom.js";
import { likelyCause } from "./diagnosis.js";
import { belief, clock, compact, decimal, duration, numeric, percent, plural, setting, stateName, unbroken, whole } from "./format.js";
import { allRanks, countStates, SILENT_SECONDS } from "./ranks.js";

const BUDGET = 0.01;
const MOST_EVENTS = 50;
const BADGES = { critical: "✖", warning: "▲", ok: "", info: "", unknown: "" };

/** A job's state; silent if no rank is live. */
export function jobState(job) {
  return job.state === "running" && job.silent_seconds >= SILENT_SECONDS ? "silent" : job.state;
}

/** A job's mark: its worst open incident, or its state. */
export function jobMark(job) {
  if (job.health !== "ok") return job.health;
  const state = jobState(job);
  return { running: "ok", ended: "ok", cancelled: "info", silent: "warning", lost: "warning", crashed: "critical" }[state] ?? "unknown";
}

/** The verdict on a run that is over: how it ended, and what was open then. Red until somebody has acknowledged it. */
function endingVerdict(status, state) {
  const { how, standing, unresolved, is_acknowledged: isSeen } = status.ending;
  const [title, ...reasons] = how.split(": ");
  const left = unresolved.find(({ rule }) => state === "ended" || rule !== "rank_silent");
  const named = `${title.charAt(0).toUpperCase()}${title.slice(1)}${left ? `, ${left.rule} unresolved` : ""}${isSeen ? ", acknowledged" : ""}`;
  return [jobMark(status), named, [reasons.join(": "), standing === "healthy" ? "The run was healthy." : standing].filter(Boolean).join(" · ")];
}

/** The headline as [mark, title, detail]. */
function verdict(model) {
  const { status } = model;
  const open = model.openIncidents;
  const state = jobState(status);
  if (open.length) {
    const [worst] = open;
    const state = worst.state === "open" ? "" : `, ${worst.state}`;
    const cause = likelyCause(worst);
    const parts = [worst.summary];
    if (cause) parts.push(`likely cause: ${cause.title} (${belief(cause.confidence)})`);
    if (open.length > 1) parts.push(`${open.length - 1} more open`);
    return [worst.severity, `${worst.rule} since step ${whole(worst.onset_step)}${state}`, parts.join(" · ")];
  }
  if (status.ending && state !== "running") return endingVerdict(status, state);
  const over = model.incidents.size ? `${plural(model.incidents.size, "incident")}, none open.` : "No incident.";
  const at = `at step ${whole(status.step)}`;
  if (state === "crashed") {
    const failed = status.ranks.find((rank) => rank.state === "failed") ?? status.ranks.find((rank) => rank.state !== "terminated");
    return ["critical", `Crashed ${at}`, failed ? `Rank ${failed.rank}${failed.host ? ` on ${failed.host}` : ""}: ${failed.error || "ended first"}` : over];
  }
  if (state === "cancelled") return ["info", `Cancelled ${at}`, over];
  if (state === "ended") return ["ok", `Ended ${at}`, over];
  if (state === "silent") return ["warning", `Silent for ${duration(status.silent_seconds)}`, `Last report ${at}.`];
  if (state === "lost") return ["warning", `Lost ${at}`, `No report for ${duration(status.silent_seconds)}: it was killed, or its machines are down.`];
  if (state === "known") return ["unknown", "No report since the daemon restarted", `Last known ${at}. ${over}`];
  const missing = status.world - status.num_live;
  const heard = missing > 0 ? `${status.num_live} of ${plural(status.world, "rank")} reported.` : `All ${plural(status.world, "rank")} report.`;
  if (missing > 0) return ["unknown", `Waiting for ${plural(missing, "rank")}`, heard];
  return ["ok", "Nothing wrong now", `${heard} ${over}`];
}

/** The tab's title, with a mark for an open incident. */
export function setTitle({ job, step }, mark) {
  const badge = BADGES[mark] ?? "";
  document.title = `${badge}${badge && " "}${job} · step ${step} · Caboose`;
}

let announced = "";

export function drawHeadline(model) {
  const { status } = model;
  const [mark, title, detail] = verdict(model);
  setData(byId("headline"), "kind", mark);
  setData(byId("headline-glyph"), "kind", mark);
  const name = { critical: "Critical", warning: "Warning", info: "Info" }[mark];
  setText(byId("headline-title"), name ? `${name}: ${title}` : title);
  setText(byId("headline-detail"), unbroken(detail));
  pairs(byId("facts"), [
    ["Job", status.job],
    ["State", stateName(jobState(status))],
    ["Health", status.health],
    ["Attempt", whole(status.attempt)],
    ["World", plural(status.world, "rank")],
    ["Parameters", status.num_parameters ? compact(status.num_parameters) : "–"],
  ]);
  setTitle(status, mark);
  // For screen readers, only changes of state; the summary's numbers change at every step.
  const open = model.openIncidents;
  const news = open.length ? open.map((incident) => `${incident.severity} ${incident.rule}`).join(", ") : stateName(jobState(status));
  if (news !== announced) setText(byId("announce"), `${status.job}: ${news}`);
  announced = news;
}

export function drawTiles(model) {
  const { status } = model;
  const last = status.last;
  const states = countStates(allRanks(status));
  const live = states.get("live") ?? 0;
  const isBad = (value) => (typeof value === "string" ? "bad" : "");
  const spread = last && last.loss_min !== null && last.num_ranks > 1 ? `${decimal(last.loss_min)} to ${decimal(last.loss_max)}` : "";
  const tiles = [
    ["Step", whole(status.step), last ? clock(last.time) : "", ""],
    ["Loss", decimal(last?.loss ?? null), spread || (status.parts?.[0]?.name ?? ""), isBad(last?.loss)],
    ["Gradient norm", decimal(last?.grad_norm ?? null), "", isBad(last?.grad_norm)],
    ["Learning rate", setting(last?.lr ?? null), "", ""],
    ["Step time", duration(status.step_seconds), last?.data_seconds != null ? `${duration(last.data_seconds)} for data` : "", ""],
    ["Ranks live", `${whole(live)} of ${whole(status.world)}`, [...states].filter(([state]) => state !== "live").map(([state, number]) => `${whole(number)} ${state}`).join(", "), ""],
    ["Non-finite", whole(status.num_non_finite), `of ${plural(status.num_steps, "step")}`, status.num_non_finite ? "bad" : ""],
  ];
  keyed(
    byId("tiles"),
    tiles,
    ([name]) => name,
    ([name]) => make("div", "", "", make("dt", "", name), make("dd", "value"), make("dd", "more")),
    (tile, [, value, more, kind]) => {
      setText(tile.children[1], value);
      setText(tile.children[2], more);
      setData(tile, "kind", kind);
    },
  );
}

/** The monitor's cost and blind spots; blind spots are always shown. */
export function drawSight(model) {
  const { status } = model;
  const rows = [];
  const share = numeric(status.agent_share);
  const cost = `${percent(share)} of a step (${duration(status.agent_seconds)} of ${duration(status.step_seconds)})`;
  const isOver = share !== null && share > BUDGET;
  rows.push(["Agent overhead", share === null ? "not reported" : isOver ? `${cost}, over its budget of 1 %` : cost, isOver ? "warning" : ""]);
  const [missed, dropped] = ["num_missed", "num_dropped"].map((name) => status.ranks.reduce((sum, rank) => sum + rank[name], 0));
  if (missed || dropped) rows.push(["Lost reports", `${whole(missed)} never arrived, ${whole(dropped)} dropped by agents`, "warning"]);
  if (status.quarantine) rows.push(["Not judged", `the daemon failed on this job repeatedly (${status.quarantine.reason}); it is judged again in ${duration(Math.max(0, status.quarantine.seconds_left))}`, "critical"]);
  if (status.refused.count) rows.push(["Refused", `${plural(status.refused.count, "other process").replace("processs", "processes")} claimed this job's name: ${status.refused.detail}`, "warning"]);
  rows.push(["Monitors", status.visible.length ? status.visible.join(", ").replaceAll("_", " ") : "unknown since the daemon restarted", status.visible.length ? "" : "unknown"]);
  for (const [what, reason] of Object.entries(status.blind)) rows.push([`Not monitored: ${what.replaceAll("_", " ")}`, reason, "warning"]);
  for (const [rule, needs] of Object.entries(status.abstaining)) rows.push([`Rule without data: ${rule}`, `needs ${needs.join(", ").replaceAll("_", " ")}`, "warning"]);
  if (status.visible.length && !Object.keys(status.blind).length && !Object.keys(status.abstaining).length) rows.push(["Blind spots", "none; every rule has its data"]);
  pairs(byId("sight-list"), rows);
}

/** A declared value: counts in full, measures with four digits. */
const declared = (value) => (Number.isInteger(value) ? whole(value) : typeof value === "number" ? decimal(value) : value);

/** Validations of one step, which each rank declares of its own data, as one with the means of their numbers. */
function merged(events) {
  const groups = new Map();
  for (const event of events) {
    const key = event.kind === "validation" ? JSON.stringify([event.attempt, event.step, Object.keys(event.fields)]) : event;
    groups.set(key, [...(groups.get(key) ?? []), event]);
  }
  return [...groups.values()].map((same) => ({ ...same[0], fields: meanOf(same.map(({ fields }) => fields)), num: same.length }));
}

function meanOf(all) {
  const mean = (name) => all.reduce((sum, fields) => sum + Number(fields[name]), 0) / all.length;
  return all.length === 1 ? all[0] : Object.fromEntries(Object.keys(all[0]).map((name) => [name, typeof all[0][name] === "string" ? all[0][name] : mean(name)]));
}

export function drawEvents(model) {
  const known = merged(model.events);
  const events = known.slice(-MOST_EVENTS).reverse();
  setText(byId("events-hint"), known.length ? whole(known.length) : "");
  byId("events-none").hidden = events.length > 0;
  keyed(
    byId("events-list"),
    events,
    (event) => `${event.time}/${event.kind}/${event.step}/${event.num}`,
    (event) => {
      const fields = Object.entries(event.fields).map(([name, value]) => `${name} ${declared(value)}`);
      if (event.num > 1) fields.push(`mean of ${whole(event.num)} ranks`);
      return make("li", "", "", make("strong", "", event.kind), make("span", "", fields.join(" · ")), make("small", "", `step ${whole(event.step)} · ${clock(event.time)}`));
    },
    () => {},
  );
}

export function drawRun(model) {
  const { status } = model;
  const rows = [["Wrapper", status.wrapper || "–"]];
  rows.push(["Parameters", status.num_parameters ? `${whole(status.num_parameters)} in ${plural(status.num_layers, "layer")}` : "–"]);
  for (const part of status.parts ?? []) {
    rows.push([`Part ${part.name}`, `${whole(part.num_parameters)} in ${plural(part.num_layers, "layer")} · loss ${decimal(part.loss)} · gradient norm ${decimal(part.grad_norm)}`]);
  }
  for (const group of status.groups) {
    const settings = Object.entries(group.settings).filter(([, value]) => value !== null);
    rows.push([`Group ${group.name}: ${group.optimizer}`, settings.map(([name, value]) => `${name} ${value}`).join(" · ")]);
  }
  for (const [name, value] of Object.entries(status.config)) rows.push([name, String(value)]);
  pairs(byId("run-list"), rows);
}
