/* The list beside the map: every layer by name, with a search field; the arrow keys move within it. */

import { byId, glyph, keyed, make, setData, setNote, setText } from "./dom.js";
import { whole } from "./format.js";
import { namesIn } from "./layer_map.js";

const MOST_LISTED = 200;
const AROUND = 20;
let listed = "";
let followed = "";

/** Connects the search field and the keys; `open` takes a name, `redraw` draws the list at once. */
export function startList({ open, redraw }) {
  const [filter, list] = [byId("layer-filter"), byId("layer-list")];
  filter.addEventListener("input", redraw); // Enter opens the first, so it must be the right one
  filter.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && list.firstElementChild) list.firstElementChild.firstElementChild.click();
    else if (event.key === "ArrowDown" && list.firstElementChild) list.firstElementChild.firstElementChild.focus();
    else return;
    event.preventDefault();
  });
  list.addEventListener("keydown", (event) => {
    const item = event.target.closest("li");
    const next = { ArrowDown: item?.nextElementSibling, ArrowUp: item?.previousElementSibling, Home: list.firstElementChild, End: list.lastElementChild }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    (next?.firstElementChild ?? (event.key === "ArrowUp" ? filter : event.target)).focus();
  });
  list.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) open(button.parentElement.dataset.key);
  });
}

/** Draws the matching names of the map, with a mark for those named by an incident. */
export function drawList(model, map, opened) {
  const wanted = byId("layer-filter").value.trim().toLowerCase();
  const named = new Map();
  for (const incident of model.sortedIncidents().reverse()) for (const name of namesIn(incident)) named.set(name, incident.severity);
  const key = [map.version, wanted, opened, [...named]].join("|");
  if (key === listed) return;
  listed = key;
  const found = map.names.filter((name) => name.toLowerCase().includes(wanted));
  const place = wanted ? -1 : found.indexOf(opened);
  const first = place < MOST_LISTED ? 0 : place - AROUND;
  const shown = found.slice(first, first + MOST_LISTED);
  keyed(byId("layer-list"), shown, (name) => name, createItem, (item, name) => {
    const [mark, text] = item.firstElementChild.children;
    mark.hidden = !named.has(name);
    setData(mark, "kind", named.get(name) ?? "unknown");
    setText(text, name);
    item.firstElementChild.setAttribute("aria-current", String(name === opened));
    item.firstElementChild.tabIndex = name === shown[0] || name === opened ? 0 : -1;
  });
  if (opened !== followed) follow(byId("layer-list"), place - first, opened);
  const rest = found.length - shown.length;
  setNote(byId("layer-list-more"), found.length ? (rest ? `and ${whole(rest)} more: type part of the name` : "") : `No ${map.of} with that name.`);
}

/** Scrolls the list to the open layer, without moving the page. */
function follow(list, place, opened) {
  followed = opened;
  const item = list.children[place];
  if (item) list.scrollTop = item.offsetTop - list.offsetTop - list.clientHeight / 2;
}

function createItem() {
  const button = make("button", "", "", glyph("unknown"), make("span"));
  button.type = "button";
  return make("li", "", "", button);
}
