/*
 * Every chart as a picture (PNG) or as its visible numbers (CSV). Both are made here in the browser, of what is shown.
 */

import { make } from "./dom.js";
import { escape } from "./format.js";

const SCALE = 2;
const tables = new WeakMap();

/** Lets the reader save this chart; `rows` returns its header and its rows. */
export function offerExport(chart, rows) {
  const isKnown = tables.has(chart);
  tables.set(chart, rows);
  if (!isKnown) place(chart);
}

function place(chart) {
  const name = chart.dataset.title ?? chart.id.replace("-chart", "");
  const summary = make("summary", "", "⤓");
  summary.setAttribute("aria-label", `Save the chart ${name}`);
  summary.title = "Save this chart";
  const box = make("details", "export", "", summary, make("div", "export-choice", "", button("PNG", "The chart as a picture", () => savePicture(chart, name)), button("CSV", "The numbers shown", () => saveNumbers(chart, name))));
  const title = chart.dataset.exportIn ? document.getElementById(chart.dataset.exportIn) : chart.previousElementSibling;
  title.append(box);
  const close = () => (box.open = false);
  box.addEventListener("click", (event) => event.target.closest("button") && close());
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !box.open) return;
    close();
    summary.focus();
  });
  document.addEventListener("click", (event) => box.contains(event.target) || close());
}

function button(text, title, action) {
  const made = make("button", "", text);
  made.type = "button";
  made.title = title;
  made.addEventListener("click", action);
  return made;
}

async function savePicture(chart, name) {
  const paper = getComputedStyle(document.documentElement).getPropertyValue("--card").trim();
  const { clientWidth: width, clientHeight: height } = chart;
  const what = chart.getAttribute("aria-label").replace(/ by \w+$/, "");
  const title = { text: escape(`${document.getElementById("picker-name").textContent}: ${what}`), font: { size: 13 }, x: 0.01, xanchor: "left", y: 0.98 };
  const layout = { ...chart.layout, paper_bgcolor: paper, plot_bgcolor: paper, title, margin: { ...chart.layout.margin, t: 34 } };
  const picture = await window.Plotly.toImage({ data: chart.data, layout }, { format: "png", width, height: height + 24, scale: SCALE });
  save(picture, `${fileName(name)}.png`);
}

function saveNumbers(chart, name) {
  const text = tables.get(chart)().map((row) => row.map(cell).join(",")).join("\r\n");
  const address = URL.createObjectURL(new Blob([text, "\r\n"], { type: "text/csv" }));
  save(address, `${fileName(name)}.csv`);
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** A cell of a CSV file; a text that a spreadsheet would run as a formula is kept a text. */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function fileName(name) {
  const job = document.getElementById("picker-name").textContent;
  return `${job}_${name}`.replace(/[^\w.-]+/g, "_").slice(0, 120);
}

function save(address, name) {
  const link = make("a");
  link.href = address;
  link.download = name;
  link.click();
}
