/*
 * The map of many ranks: a square for each, those of one host together, on one canvas.
 *
 * Squares are as large as fits all of them. Colour follows an even scale (cividis), with more contrast the further out a
 * rank is; ranks that need attention also have a shape or a ring, so colour is never the only signal.
 */

import { isNotFinite, MEASURES, rankState } from "./rankvalues.js";

const PITCHES = [22, 18, 15, 13, 11, 9, 8, 7, 6, 5, 4];
const HEIGHT = 400;
const LABEL = 15;
const FADED = 0.13;
const CALM = 0.7;
const FEW_HOSTS = 48;
const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const RGB = CIVIDIS.map((colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));

/** The scale's colour at a share of it; on dark ground from dark to bright, on light ground the other way round. */
export function shade(share, isDark) {
  const within = Math.min(1, Math.max(0, share));
  const place = (isDark ? 0.16 + 0.84 * within : 0.92 - 0.92 * within) * (RGB.length - 1);
  const low = Math.min(RGB.length - 2, Math.floor(place));
  const mixed = RGB[low].map((value, index) => Math.round(value + (RGB[low + 1][index] - value) * (place - low)));
  return `rgb(${mixed.join(" ")})`;
}

/** The layout of the squares in a given width: { pitch, size, height, xs, ys, labels }. */
export function arrange(ranks, width) {
  const hosts = new Map();
  ranks.forEach((rank, place) => {
    const host = rank.host ?? "";
    if (!hosts.has(host)) hosts.set(host, []);
    hosts.get(host).push(place);
  });
  const hasLabels = hosts.size <= FEW_HOSTS && hosts.size < ranks.length;
  let plan = null;
  for (const pitch of PITCHES) {
    plan = arrangeAt(hosts, ranks.length, width, pitch, hasLabels);
    if (plan.height <= HEIGHT) break;
  }
  return plan;
}

function arrangeAt(hosts, number, width, pitch, hasLabels) {
  const gap = pitch >= 11 ? 3 : pitch >= 8 ? 2 : 1;
  const xs = new Float32Array(number);
  const ys = new Float32Array(number);
  const labels = [];
  const isApart = hosts.size < number; // hosts of one rank each need no room between them
  const room = isApart ? Math.max(3, Math.round(pitch / 2)) : 0;
  const head = hasLabels ? LABEL : 0;
  let [x, y, tallest] = [0, 0, 0];
  for (const [host, places] of hosts) {
    const most = Math.max(1, Math.floor(width / pitch));
    const columns = Math.min(most, places.length <= 4 ? places.length : Math.ceil(places.length / 2), 16);
    const wide = Math.max(columns * pitch, hasLabels ? 44 : 0);
    const tall = head + Math.ceil(places.length / columns) * pitch;
    if (x && x + wide > width) [x, y, tallest] = [0, y + tallest + room, 0];
    if (hasLabels) labels.push({ host: host || "no report yet", x, y: y + LABEL - 4, wide: wide + room - 4 });
    places.forEach((place, index) => {
      xs[place] = x + (index % columns) * pitch;
      ys[place] = y + head + Math.floor(index / columns) * pitch;
    });
    x += wide + room;
    tallest = Math.max(tallest, tall);
  }
  return { pitch, size: pitch - gap, height: y + tallest, xs, ys, labels };
}

/** The square at a point, or -1. */
export function squareAt(plan, x, y) {
  for (let place = 0; place < plan.xs.length; place += 1) {
    const [dx, dy] = [x - plan.xs[place], y - plan.ys[place]];
    if (dx >= 0 && dy >= 0 && dx < plan.pitch && dy < plan.pitch) return place;
  }
  return -1;
}

/** The square an arrow key moves to: along the ranks, or the nearest in the row above or below. */
export function neighbour(plan, place, key) {
  const last = plan.xs.length - 1;
  if (key === "ArrowLeft") return Math.max(0, place - 1);
  if (key === "ArrowRight") return Math.min(last, place + 1);
  if (key === "Home") return 0;
  if (key === "End") return last;
  const sign = key === "ArrowDown" ? 1 : -1;
  let [best, nearest] = [place, Infinity];
  for (let other = 0; other <= last; other += 1) {
    const down = sign * (plan.ys[other] - plan.ys[place]);
    if (down <= 0) continue;
    const distance = down * 10 + Math.abs(plan.xs[other] - plan.xs[place]);
    if (distance < nearest) [best, nearest] = [other, distance];
  }
  return best;
}

/** Draws the map; `look` is { measure, all, isShown, chosen, pointed, colours, isDark }. */
export function paint(canvas, plan, ranks, width, look) {
  const scale = window.devicePixelRatio || 1;
  const [wide, tall] = [Math.round(width * scale), Math.round((plan.height + 4) * scale)];
  if (canvas.width !== wide || canvas.height !== tall) [canvas.width, canvas.height] = [wide, tall];
  canvas.style.height = `${plan.height + 4}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 2 * scale, 2 * scale);
  pen.clearRect(-2, -2, width, plan.height + 4);
  paintLabels(pen, plan, look.colours);
  ranks.forEach((rank, place) => {
    pen.globalAlpha = look.isShown(rank) ? 1 : FADED;
    paintSquare(pen, plan.xs[place], plan.ys[place], plan.size, rank, look);
  });
  pen.globalAlpha = 1;
  for (const [place, colour] of [[look.pointed, look.colours.muted], [look.chosen, look.colours.accent]]) {
    if (place >= 0 && place < ranks.length) ring(pen, plan.xs[place], plan.ys[place], plan.size, colour, 2);
  }
}

function paintLabels(pen, plan, colours) {
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = colours.muted;
  for (const { host, x, y, wide } of plan.labels) {
    let text = host;
    while (text.length > 1 && pen.measureText(text).width > wide) text = text === host ? `${host.slice(0, -2)}…` : `${text.slice(0, -2)}…`;
    pen.fillText(text, x, y);
  }
}

function paintSquare(pen, x, y, size, rank, { measure, all, colours, isDark }) {
  const { far, share, isBad } = MEASURES[measure];
  const state = rankState(rank);
  if (state === "absent" || state === "expected") {
    pen.strokeStyle = colours.unknown;
    pen.setLineDash([1.5, 1.5]);
    pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    pen.setLineDash([]);
    return;
  }
  const bad = isBad(rank, all);
  if (measure === "state") {
    const mark = isNotFinite(rank.loss) && state === "live" ? "bad" : state;
    if (mark === "live" && !bad) {
      pen.globalAlpha *= CALM; // so that the others stand out
      fill(pen, "square", x, y, size, colours.ok);
    }
    else if (mark === "left" || mark === "terminated") fill(pen, "small", x, y, size, colours.info);
    else if (mark === "live") {
      fill(pen, "square", x, y, size, colours.ok);
      ring(pen, x, y, size, colours.warning, 1.5);
    }
    else {
      const [shape, colour] = { failed: ["octagon", colours.critical], silent: ["triangle", colours.warning], bad: ["cross", colours.bad] }[mark] ?? ["small", colours.unknown];
      fill(pen, shape, x - 1, y - 1, size + 2, colour);
    }
    return;
  }
  const value = far(rank, all);
  if (value === null) fill(pen, "small", x, y, size, colours.unknown);
  else if (isNotFinite(rank.loss) && measure === "loss") fill(pen, "cross", x - 1, y - 1, size + 2, colours.bad);
  else fill(pen, "square", x, y, size, shade(share(value), isDark));
  if (bad) ring(pen, x, y, size, colours.critical, 1.5);
}

const SHAPES = {
  octagon: [[0.3, 0], [0.7, 0], [1, 0.3], [1, 0.7], [0.7, 1], [0.3, 1], [0, 0.7], [0, 0.3]],
  triangle: [[0.5, 0], [1, 1], [0, 1]],
  cross: [[0.2, 0], [0.5, 0.3], [0.8, 0], [1, 0.2], [0.7, 0.5], [1, 0.8], [0.8, 1], [0.5, 0.7], [0.2, 1], [0, 0.8], [0.3, 0.5], [0, 0.2]],
};

export function fill(pen, shape, x, y, size, colour) {
  pen.fillStyle = colour;
  if (shape === "square") pen.fillRect(x, y, size, size);
  else if (shape === "small") pen.fillRect(x + size / 4, y + size / 4, size / 2, size / 2);
  else {
    pen.beginPath();
    SHAPES[shape].forEach(([right, down], index) => pen[index ? "lineTo" : "moveTo"](x + right * size, y + down * size));
    pen.fill();
  }
}

function ring(pen, x, y, size, colour, wide) {
  pen.strokeStyle = colour;
  pen.lineWidth = wide;
  pen.strokeRect(x - wide / 2, y - wide / 2, size + wide, size + wide);
  pen.lineWidth = 1;
}
