/*
 * Every chart and map as a picture (PNG) or as its visible numbers (CSV). Both are made here in the browser, of what is
 * shown. A table has its numbers only.
 */

import { pictureOf } from "./chart.js";
import { make } from "./dom.js";

const tables = new WeakMap();

/** Lets the reader save this chart; `rows` returns its header and its rows, `picture` the address of a PNG with a title. */
export function offerExport(chart, rows, picture = pictureOf) {
  const isKnown = tables.has(chart);
  tables.set(chart, rows);
  if (!isKnown) place(chart, picture);
}

function place(chart, picture) {
  const name = chart.dataset.title ?? chart.id.replace("-chart", "");
  const summary = make("summary", "", "⤓");
  summary.setAttribute("aria-label", `Save ${name}`);
  summary.title = "Save as a picture or as numbers";
  const box = make("details", "export", "", summary, make("div", "export-choice"));
  if (picture) box.lastElementChild.append(button("PNG", "As a picture", () => savePicture(chart, name, picture)));
  box.lastElementChild.append(button("CSV", "The numbers shown", () => saveNumbers(chart, name)));
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

function savePicture(chart, name, picture) {
  const style = getComputedStyle(document.documentElement);
  const [paper, ink] = ["--card", "--text"].map((colour) => style.getPropertyValue(colour).trim());
  const what = (chart.getAttribute("aria-label") ?? name).replace(/ by \w+$/, "");
  save(picture(chart, { title: `${document.getElementById("picker-name").textContent}: ${what}`, paper, ink }), `${fileName(name)}.png`);
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
