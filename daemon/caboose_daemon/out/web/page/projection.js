/*
 * The projection of a raised loss, drawn: what it was, its level, the expected way back by waiting with its band, and
 * the way by going back. Both costs are written below, so nothing depends on the picture.
 */

import { make, setText } from "./dom.js";
import { whole } from "./format.js";

const WIDE = 560;
const TALL = 150;
const EDGE = 4;
const SVG = "http://www.w3.org/2000/svg";

/** An empty figure; `updateProjection` fills it. */
export function makeProjection() {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", `0 0 ${WIDE} ${TALL}`);
  picture.setAttribute("class", "projection-picture");
  picture.setAttribute("role", "img");
  for (const name of ["band", "level", "past", "likely", "back"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", `projection-${name}`);
    picture.append(path);
  }
  return make("figure", "projection", "", picture, make("figcaption", "note"));
}

/** Draws an outlook; `plan` has the target, the boundary and the costs, as far as they are known. */
export function updateProjection(figure, outlook, plan) {
  figure.hidden = !outlook;
  if (!outlook) return;
  const [picture, caption] = figure.children;
  const key = JSON.stringify([outlook, plan]);
  if (figure.dataset.drawn === key) return;
  figure.dataset.drawn = key;
  const text = costText(plan);
  setText(caption, text);
  picture.setAttribute("aria-label", `Projection of the loss from step ${whole(outlook.past_steps[0] ?? outlook.steps[0])} to ${whole(outlook.steps.at(-1))}. ${text}`);
  const { x, y } = scales(outlook);
  const line = (steps, values) => steps.map((step, place) => `${place ? "L" : "M"}${x(step)} ${y(values[place])}`).join("");
  const back = [...outlook.steps].reverse();
  const edge = line(outlook.steps, outlook.high) + line(back, [...outlook.low].reverse()).replace("M", "L");
  const shapes = [`${edge}Z`, line(outlook.steps, outlook.level), line(outlook.past_steps, outlook.past), line(outlook.steps, outlook.likely), wayBack(outlook, plan, x, y)];
  shapes.forEach((shape, place) => picture.children[place].setAttribute("d", shape));
}

/** Both costs in words. */
export function costText({ cost, target, boundary }) {
  if (!cost) return "The cost of a rollback is not known yet.";
  const steps = (value) => (typeof value === "number" ? whole(Math.round(value)) : "all");
  const where = target === null || boundary === null ? "" : ` (step ${whole(boundary)} to ${whole(target)})`;
  return `Waiting: ${steps(cost.waiting)} steps of training lost (${steps(cost.least)} to ${steps(cost.most)}). Going back${where}: ${steps(cost.going_back)}.`;
}

/** From the present loss at the boundary to the level, and along it. */
function wayBack({ steps, level, likely }, { target, boundary }, x, y) {
  if (target === null || target === undefined || boundary === null || boundary > steps.at(-1)) return "";
  const at = Math.max(0, steps.findIndex((step) => step >= boundary));
  const drop = `M${x(boundary)} ${y(likely[at])}L${x(boundary)} ${y(level[at])}`;
  return drop + steps.slice(at).map((step, place) => `L${x(step)} ${y(level[at + place])}`).join("");
}

function scales({ past_steps: before, past, steps, level, high, likely }) {
  const first = before[0] ?? steps[0];
  const last = steps.at(-1);
  const top = Math.max(...past, ...likely, Math.min(Math.max(...high), 2 * Math.max(...past)));
  const bottom = Math.min(...past, ...level);
  const x = (step) => (EDGE + ((step - first) / Math.max(1, last - first)) * (WIDE - 2 * EDGE)).toFixed(1);
  const y = (loss) => (EDGE + Math.max(0, 1 - (loss - bottom) / Math.max(top - bottom, 1e-12)) * (TALL - 2 * EDGE)).toFixed(1);
  return { x, y };
}
