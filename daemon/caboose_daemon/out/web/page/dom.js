/* Small DOM functions. Text is only inserted as text, never as markup. */

import { unbroken } from "./format.js";

export const byId = (id) => document.getElementById(id);

/** An element with a class, text, and children. */
export function make(tag, className = "", text = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

/** Sets text if it changed, so that a selection in it survives. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets text, and hides the element when there is none. */
export function setNote(element, text) {
  setText(element, text);
  element.hidden = !text;
}

export function setData(element, name, value) {
  if (element.dataset[name] !== value) element.dataset[name] = value;
}

/** Sets text in which `backticks` mark code. */
export function setProse(element, text) {
  if (element.dataset.prose === text) return;
  element.dataset.prose = text;
  const parts = text.split("`");
  const isPaired = parts.length % 2 === 1;
  element.replaceChildren(...(isPaired ? parts.map((part, place) => (place % 2 ? make("code", "", part) : unbroken(part))) : [unbroken(text)]));
}

/** Fills a list with lines of prose. */
export function setLines(list, lines) {
  while (list.children.length > lines.length) list.lastElementChild.remove();
  lines.forEach((line, place) => setProse(list.children[place] ?? list.appendChild(make("li")), line));
}

/** Makes a list's children match the items, in order; elements are reused by key. */
export function keyed(list, items, keyOf, create, update) {
  const known = new Map([...list.children].map((child) => [child.dataset.key, child]));
  const focused = document.activeElement;
  let place = list.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = known.get(key);
    known.delete(key);
    if (!element) {
      element = create(item);
      element.dataset.key = key;
    }
    if (element === place) place = place.nextElementSibling;
    else list.insertBefore(element, place);
    update(element, item);
  }
  for (const gone of known.values()) gone.remove();
  // A moved element loses the focus; restore it for keyboard users.
  if (focused !== document.activeElement && list.contains(focused)) focused.focus({ preventScroll: true });
}

/** Fills a description list from [term, text, kind?] triples. */
export function pairs(list, rows) {
  keyed(
    list,
    rows,
    (row) => row[0],
    ([term]) => make("div", "", "", make("dt", "", term), make("dd")),
    (element, [, text, kind]) => {
      setText(element.lastElementChild, text);
      setData(element, "kind", kind ?? "");
    },
  );
}

/** The mark of a severity or state: shape and colour are in the style sheet, its name is beside it as text. */
export function glyph(kind) {
  const element = make("span", "glyph");
  element.dataset.kind = kind;
  element.setAttribute("aria-hidden", "true");
  return element;
}

const reached = new Set();

/** Records when something was first on the screen (performance.getEntriesByType("mark")). */
export function milestone(name) {
  if (reached.has(name)) return;
  reached.add(name);
  performance.mark(`caboose ${name}`);
}
