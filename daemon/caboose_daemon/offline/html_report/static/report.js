"use strict";
// Draws the charts of the HTML report from its embedded numbers; everything else on the page is static text.

const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const state = { isLog: false, isSmooth: false };
const curves = data.curves;
const last = data.attempts.length ? data.attempts[data.attempts.length - 1] : 1;
const SMOOTH = 0.9; // of the exponential average that `smooth` shows

const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
const only = (values, keep) => values.map((value, i) => (keep(i) ? value : null));
const PHASES = ["data", "forward", "loss", "backward", "optimizer"];
/** Rows not repeated by a later attempt. */
const kept = new Set();
for (let i = data.steps.length - 1, lowest = Infinity; i >= 0; i -= 1) {
  if (data.steps[i] < lowest) kept.add(i);
  lowest = Math.min(lowest, data.steps[i]);
}
const isKept = (i) => kept.has(i);
const seen = (name) => (curves[name] || []).some((value) => value !== null);

function scale(values) {
  // Logarithmic if the range is wide, with a line for each power of ten.
  const known = values.filter((value) => value !== null && value > 0);
  const isWide = known.length > 0 && Math.max(...known) > 20 * Math.min(...known);
  return isWide ? { type: "log", dtick: 1 } : { type: "linear", rangemode: "tozero" };
}

function smoothed(values) {
  let mean = null;
  let weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = (mean === null ? 0 : mean * SMOOTH) + (1 - SMOOTH) * value;
    weight = weight * SMOOTH + (1 - SMOOTH);
    return mean / weight;
  });
}

function line(values, more) {
  return { x: data.steps, y: values, mode: "lines", line: { width: 1.6, color: colour("accent") }, ...more };
}

function layout(more) {
  const grid = { gridcolor: colour("line"), zeroline: false, linecolor: colour("line"), tickfont: { size: 11 } };
  return {
    margin: { l: 56, r: 10, t: 8, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("muted"), family: "system-ui, sans-serif" },
    hovermode: "x",
    hoverlabel: { bgcolor: colour("card"), font: { color: colour("text") }, bordercolor: colour("line") },
    showlegend: false,
    ...more,
    xaxis: { ...grid, tickformat: ",d", hoverformat: ",d", ...(more && more.xaxis) },
    yaxis: { ...grid, exponentformat: "power", ...(more && more.yaxis) },
  };
}

function draw(name, traces, more) {
  const place = document.querySelector(`[data-chart="${name}"]`);
  if (place) Plotly.react(place, traces, layout(more), { displayModeBar: false, responsive: true });
  return place;
}

function spans() {
  const strength = { critical: 0.2, warning: 0.15, info: 0.1 };
  const shapes = data.incidents.map((incident) => ({
    type: "rect", xref: "x", yref: "paper", x0: incident.onset, x1: Math.max(incident.end, incident.onset + 1),
    y0: 0, y1: 1, line: { width: 0 }, layer: "below",
    fillcolor: colour(incident.severity) || colour("info"), opacity: strength[incident.severity] || 0.1,
  }));
  const starts = data.incidents.map((incident) => ({
    type: "line", xref: "x", yref: "paper", x0: incident.onset, x1: incident.onset, y0: 0, y1: 1,
    line: { width: 1.5, color: colour(incident.severity) || colour("info") },
  }));
  const backs = data.rollbacks.map((back) => ({
    type: "line", xref: "x", yref: "paper", x0: back.step, x1: back.step, y0: 0, y1: 1,
    line: { width: 2, dash: "dash", color: colour("text") },
  }));
  return [...shapes, ...starts, ...backs];
}

function labels() {
  // Incident numbers along the top; if two would overlap, the later one is omitted.
  const first = data.steps[0] || 0;
  const width = (data.steps[data.steps.length - 1] || 1) - first || 1;
  const shown = [];
  for (const incident of [...data.incidents].sort((a, b) => a.onset - b.onset)) {
    if (!shown.length || incident.onset - shown[shown.length - 1].onset > width / 40) shown.push(incident);
  }
  return shown.map((incident) => ({
    x: incident.onset, y: 1, xref: "x", yref: "paper", text: `#${incident.number}`, showarrow: false,
    xanchor: "left", yanchor: "top", xshift: 3, font: { size: 11, color: colour(incident.severity) },
    hovertext: `${incident.rule}: ${incident.summary}`,
  }));
}

function lossChart() {
  const values = state.isSmooth ? smoothed(curves.loss || []) : curves.loss || [];
  const isNow = (i) => data.attempts[i] === last;
  const quiet = { hoverinfo: "skip", line: { width: 0 } };
  const traces = [];
  if (!state.isSmooth) {
    traces.push(line(only(curves.loss_min || [], isNow), quiet));
    traces.push(line(only(curves.loss_max || [], isNow), { ...quiet, fill: "tonexty", fillcolor: colour("band") }));
  }
  if (data.attempts.some((attempt) => attempt !== last)) {
    traces.push(line(only(values, (i) => !isNow(i)), { line: { width: 1.3, color: colour("earlier") }, name: "before" }));
  }
  traces.push(line(only(values, isNow), { name: "loss", hovertemplate: "%{y:.5g}<extra>loss</extra>" }));
  if (data.validations.length) {
    traces.push({
      x: data.validations.map((row) => row[0]), y: data.validations.map((row) => row[1]), mode: "lines+markers",
      line: { width: 1, dash: "dot", color: colour("second") }, marker: { size: 5, color: colour("second") },
      hovertemplate: "%{y:.5g}<extra>validation</extra>",
    });
  }
  if (data.bad_steps.length) {
    const finite = [...(curves.loss || [])].filter((value) => value !== null);
    const low = finite.length ? Math.min(...finite) : 1;
    traces.push({
      x: data.bad_steps, y: data.bad_steps.map(() => low), mode: "markers",
      marker: { symbol: "x", size: 8, color: colour("bad") }, hovertemplate: "not finite<extra></extra>",
    });
  }
  draw("loss", traces, {
    shapes: spans(), annotations: labels(), yaxis: { type: state.isLog ? "log" : "linear" },
  });
}

/** A curve with its extremes; repeated steps are drawn behind it, at their maximum, so that spikes stay visible. */
function withExtremes(name, hover) {
  const [mean, low, high] = [curves[name], curves[`${name}_min`] || [], curves[`${name}_max`] || []];
  const quiet = { hoverinfo: "skip", line: { width: 0 } };
  const traces = [line(only(low, isKept), quiet), line(only(high, isKept), { ...quiet, fill: "tonexty", fillcolor: colour("band") })];
  if (kept.size < data.steps.length) {
    traces.push(line(only(high, (i) => !isKept(i)), { line: { width: 1.2, color: colour("earlier") }, hovertemplate: hover("repeated later") }));
  }
  if (data.is_thinned) {
    traces.push(line(only(high, isKept), { line: { width: 0.7, color: colour("accent") }, opacity: 0.75, hovertemplate: hover("maximum") }));
  }
  traces.push(line(only(mean, isKept), { hovertemplate: hover(data.is_thinned ? "mean" : "") }));
  return traces;
}

function smallCharts() {
  if (seen("grad_norm")) {
    const hover = (what) => `%{y:.4g}<extra>${what}</extra>`;
    draw("grad_norm", withExtremes("grad_norm", hover), { yaxis: scale([...curves.grad_norm, ...curves.grad_norm_max]), shapes: spans() });
  }
  if (seen("lr")) {
    const top = 1.1 * Math.max(...curves.lr.filter((value) => value !== null)) || 1;
    draw("lr", [line(only(curves.lr, isKept), { hovertemplate: "%{y:.3g}<extra></extra>" })], { yaxis: { range: [0, top] } });
  }
  const rate = ["tokens_per_second", "samples_per_second"].find(seen);
  if (rate) {
    const hover = (what) => `%{y:.4~s}<extra>${what}</extra>`;
    draw("throughput", withExtremes(rate, hover), { yaxis: { rangemode: "tozero", tickformat: "~s" }, shapes: spans() });
  }
  for (const name of ["grad_norm", "throughput"]) {
    showLegend(`[data-legend="${name}"]`, [
      ["", "mean per point", data.is_thinned],
      ["band", "minimum to maximum per point", data.is_thinned],
      ["earlier", "repeated later", kept.size < data.steps.length],
    ]);
  }
  if (seen("step_seconds")) stepTime();
}

/** Step time as a stack of its phases, the unaccounted rest on top, and the slowest step of each point. */
function stepTime() {
  const phases = PHASES.filter((name) => seen(`${name}_seconds`));
  const rows = data.steps.map((_, i) => i).filter((i) => isKept(i) && curves.step_seconds[i] !== null);
  const part = (name, i) => (curves[`${name}_seconds`] || [])[i] || 0;
  const rest = (i) => Math.max(0, curves.step_seconds[i] - phases.reduce((sum, name) => sum + part(name, i), 0));
  const traces = !phases.length ? [] : [...phases, "other"].map((name) => ({
    x: rows.map((i) => data.steps[i]), y: rows.map((i) => (name === "other" ? rest(i) : part(name, i))), name, stackgroup: "phases",
    mode: "lines", line: { width: 0.5, color: colour("card") }, fillcolor: colour(`phase-${name}`),
    hovertemplate: `%{y:.3g} s<extra>${name}</extra>`,
  }));
  if (!phases.length) traces.push(line(only(curves.step_seconds, isKept), { hovertemplate: "%{y:.3g} s<extra>step</extra>" }));
  if (data.is_thinned) {
    const look = { width: 1, color: colour("accent") };
    traces.push(line(only(curves.step_seconds_max, isKept), { line: look, opacity: 0.75, hovertemplate: "%{y:.3g} s<extra>slowest</extra>" }));
  }
  draw("step_seconds", traces, { yaxis: { rangemode: "tozero", ticksuffix: " s" } });
  showLegend('[data-legend="step_seconds"]', [
    ["high", "slowest step per point", data.is_thinned],
    ...["other", ...[...phases].reverse()].map((name) => [`phase-${name}`, name, phases.length]),
  ]);
}

function layerCharts() {
  if (!data.layers) return;
  const { layers, modules } = data.layers;
  const places = layers.name.map((_, i) => i + 1);
  for (const name of ["grad_norm", "update_ratio", "weight_norm"]) {
    const about = layers.name.map((layer, i) => `${layer} (${layers.kind[i] || "?"}, ${layers.numel[i].toLocaleString()})`);
    draw(`layer:${name}`, [{
      x: places, y: layers[name].map((value) => (value === 0 ? null : value)), text: about, mode: "lines+markers",
      line: { width: 1, color: colour("accent") }, marker: { size: 4, color: colour("accent") },
      hovertemplate: "%{text}<br>%{y:.3g}<extra></extra>",
    }], { hovermode: "closest", yaxis: scale(layers[name]) });
  }
  const bars = [["dead", "critical", "dead"], ["saturated", "warning", "saturated"]].map(([key, tint, name]) => ({
    x: modules.name.map((_, i) => i + 1), y: modules[key], text: modules.name, type: "bar", name,
    marker: { color: colour(tint) }, hovertemplate: `%{text}<br>%{y:.1%} ${name}<extra></extra>`,
  }));
  draw("modules", bars, { hovermode: "closest", barmode: "group", yaxis: { tickformat: ".0%", range: [0, 1] } });
}

function legend() {
  const worst = new Set(data.incidents.map((incident) => incident.severity));
  const rows = [
    ["", "loss", seen("loss")],
    ["band", "minimum to maximum over ranks and steps", !state.isSmooth && seen("loss")],
    ["earlier", "earlier attempts", data.attempts.some((attempt) => attempt !== last)],
    ["validation", "validation", data.validations.length],
    ["critical", "critical incident", worst.has("critical")],
    ["warning", "warning incident", worst.has("warning")],
    ["info", "info incident", worst.has("info")],
    ["rollback", "rollback", data.rollbacks.length],
    ["bad", "not finite", data.bad_steps.length],
  ];
  showLegend("#legend", rows);
}

function showLegend(place, rows) {
  const list = document.querySelector(place);
  if (list) list.replaceChildren(...rows.filter((row) => row[2]).map(([kind, text]) => {
    const item = document.createElement("li");
    const key = document.createElement("i");
    if (kind) key.dataset.kind = kind;
    item.append(key, text);
    return item;
  }));
}

function all() {
  lossChart();
  smallCharts();
  layerCharts();
  legend();
}

function together() {
  // Zooming one curve zooms all of them.
  const charts = ["loss", "grad_norm", "lr", "throughput", "step_seconds"]
    .map((name) => document.querySelector(`[data-chart="${name}"]`)).filter((place) => place && place.on);
  let isBusy = false;
  for (const chart of charts) {
    chart.on("plotly_relayout", (change) => {
      if (isBusy) return;
      const range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      const update = range[0] !== undefined ? { "xaxis.range": range } : change["xaxis.autorange"] ? { "xaxis.autorange": true } : null;
      if (!update) return;
      isBusy = true;
      Promise.all(charts.filter((other) => other !== chart).map((other) => Plotly.relayout(other, update)))
        .finally(() => { isBusy = false; });
    });
  }
}

function toggle(id, key) {
  const button = document.getElementById(id);
  button.addEventListener("click", () => {
    state[key] = !state[key];
    button.setAttribute("aria-pressed", String(state[key]));
    lossChart();
    legend();
  });
}

document.getElementById("theme").addEventListener("click", () => {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  all();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
toggle("scale", "isLog");
toggle("smooth", "isSmooth");
all();
together();
root.dataset.height = String(Math.ceil(root.scrollHeight));
