/*
 * Paints a chart on a canvas, from its traces and its layout: cells, areas, lines, marks, shapes, notes and axes.
 *
 * A trace is a curve (`x` and `y`, null between its parts), an area (`fill`), marks (`mode` markers), or cells (`z`). A
 * place of `yaxis: "y2"` or `yref: "paper"` is a share of the height, from the bottom. A canvas takes a few thousand
 * points in a few milliseconds, on any scale and without an element for each.
 */

import { scaleOf, ticksOf } from "./chart_axes.js";
import { drawSymbol } from "./chart_symbols.js";

const TICK = 5;
const MOST_TICKS = 8;
const LINE_HEIGHT = 1.2;
const DASHES = { solid: [], dash: [6, 4], dot: [2, 3], short: [4, 2] };
const pick = (value, place) => (Array.isArray(value) ? value[place] : value);

/** The place of the plot in its element, and its scales. */
export function frameOf(layout, width, height) {
  const { l, r, t, b } = layout.margin;
  const box = { left: l, top: t, right: Math.max(l + 1, width - r), bottom: Math.max(t + 1, height - b) };
  const share = scaleOf({ range: [0, 1] }, [box.bottom, box.top]);
  return { ...box, width, x: scaleOf(layout.xaxis, [box.left, box.right]), y: scaleOf(layout.yaxis, [box.bottom, box.top]), share };
}

/** The layout with a left margin that the texts of its vertical axis fit into, unless its margins are fixed. */
export function roomy(pen, layout) {
  const { margin, yaxis, font } = layout;
  if (margin.isFixed || yaxis.showticklabels === false) return layout;
  pen.font = fontOf({ ...font, ...yaxis.tickfont });
  const widest = ticksOf(yaxis, yaxis.nticks ?? MOST_TICKS).reduce((wide, [, text]) => Math.max(wide, pen.measureText(text).width), 0);
  return { ...layout, margin: { ...margin, l: Math.max(margin.l, Math.ceil(widest) + 12) } };
}

/** The vertical scale that a trace is on. */
export const scaleFor = (frame, { yaxis }) => (yaxis === "y2" ? frame.share : frame.y);

/** Paints all of it; `pen` has the origin in the upper left corner of the element. */
export function paint(pen, traces, layout, frame) {
  const shapes = layout.shapes ?? [];
  pen.font = fontOf(layout.font);
  paintGrid(pen, layout, frame);
  clipped(pen, frame, () => {
    for (const shape of shapes) if (shape.layer === "below") paintShape(pen, shape, frame);
    for (const trace of traces) if (trace.cliponaxis !== false) paintTrace(pen, trace, frame);
    for (const shape of shapes) if (shape.layer !== "below") paintShape(pen, shape, frame);
  });
  for (const trace of traces) if (trace.cliponaxis === false) paintTrace(pen, onlyInSight(trace, layout.xaxis), frame);
  paintAxes(pen, layout, frame);
  for (const note of layout.annotations ?? []) if (isWithin(note.x, layout.xaxis.range)) paintNote(pen, note, layout, frame);
}

const fontOf = ({ size, family = "system-ui, sans-serif" }) => `${size}px ${family}`;
const isWithin = (x, [low, high]) => x >= low && x <= high;

function clipped(pen, { left, top, right, bottom }, action) {
  pen.save();
  pen.beginPath();
  pen.rect(left, top, right - left, bottom - top);
  pen.clip();
  action();
  pen.restore();
}

/** Marks at the edge are whole, those beside the range are not there. */
function onlyInSight(trace, { range }) {
  const places = trace.x.map((_, place) => place).filter((place) => isWithin(trace.x[place], range));
  const of = (value) => (Array.isArray(value) ? places.map((place) => value[place]) : value);
  const marker = Object.fromEntries(Object.entries(trace.marker).map(([name, value]) => [name, of(value)]));
  return { ...trace, x: of(trace.x), y: of(trace.y), text: of(trace.text), textposition: of(trace.textposition), marker };
}

/* Traces */

function paintTrace(pen, trace, frame) {
  if (trace.z) {
    paintCells(pen, trace, frame);
    return;
  }
  pen.globalAlpha = trace.opacity ?? 1;
  const y = scaleFor(frame, trace);
  if (trace.fill) paintArea(pen, trace, frame.x, y);
  else if (trace.mode.includes("lines")) paintLine(pen, trace, frame.x, y);
  if (trace.mode.includes("markers")) paintMarks(pen, trace, frame.x, y);
  if (trace.mode.includes("text")) paintTexts(pen, trace, frame.x, y);
  pen.globalAlpha = 1;
}

/** One path through all parts of a curve. */
function follow(pen, { x, y }, across, up) {
  let isDown = false;
  pen.beginPath();
  for (let place = 0; place < x.length; place += 1) {
    const [left, top] = x[place] === null || y[place] === null ? [NaN, NaN] : [across.at(x[place]), up.at(y[place])];
    if (!Number.isFinite(left + top)) isDown = false;
    else if (isDown) pen.lineTo(left, top);
    else (isDown = true), pen.moveTo(left, top);
  }
}

function paintArea(pen, trace, across, up) {
  follow(pen, trace, across, up);
  pen.fillStyle = trace.fillcolor;
  pen.fill();
  if (trace.line.width) stroke(pen, trace.line);
}

function paintLine(pen, trace, across, up) {
  if (!trace.line.width) return;
  follow(pen, trace, across, up);
  stroke(pen, trace.line);
}

function stroke(pen, { color, width, dash = "solid" }) {
  [pen.strokeStyle, pen.lineWidth, pen.lineJoin] = [color, width, "round"];
  pen.setLineDash(DASHES[dash]);
  pen.stroke();
  pen.setLineDash([]);
}

function paintMarks(pen, { x, y, marker, line }, across, up) {
  x.forEach((value, place) => {
    if (value === null || y[place] === null) return;
    const [left, top] = [across.at(value), up.at(y[place])];
    if (!Number.isFinite(left + top)) return;
    pen.globalAlpha = pick(marker.opacity, place) ?? 1;
    drawSymbol(pen, pick(marker.symbol, place) ?? "circle", left, top, pick(marker.size, place) ?? 6, pick(marker.color, place) ?? line?.color, marker.line);
  });
  pen.globalAlpha = 1;
}

function paintTexts(pen, { x, y, text, textposition, textfont, marker }, across, up) {
  [pen.fillStyle, pen.font, pen.textBaseline] = [textfont.color, fontOf(textfont), "middle"];
  x.forEach((value, place) => {
    const isLeft = textposition[place].endsWith("left");
    pen.textAlign = isLeft ? "right" : "left";
    const away = marker.size / 2 + 1;
    pen.fillText(text[place], across.at(value) + (isLeft ? -away : away), up.at(y[place]));
  });
}

/** A matrix of cells, one around each pair of whole numbers. */
function paintCells(pen, { z, zmin, zmax, colorscale }, frame) {
  const shades = Array.from({ length: 256 }, (_, place) => shadeAt(colorscale, place / 255));
  const edges = (scale, count) => Array.from({ length: count + 1 }, (_, place) => Math.round(scale.at(place - 0.5)));
  const tops = edges(frame.y, z.length), lefts = edges(frame.x, z[0]?.length ?? 0);
  z.forEach((row, place) => row.forEach((value, column) => {
    if (value === null) return;
    const share = zmax > zmin ? (value - zmin) / (zmax - zmin) : 0;
    pen.fillStyle = shades[Math.round(255 * Math.min(1, Math.max(0, share)))];
    pen.fillRect(lefts[column], tops[place], lefts[column + 1] - lefts[column], tops[place + 1] - tops[place]);
  }));
}

/** A colour between those of a scale, which are written as #rrggbb. */
function shadeAt(scale, share) {
  const after = Math.max(1, scale.findIndex(([at]) => at >= share));
  const [[from, one], [to, other]] = [scale[after - 1], scale[after]];
  const part = to > from ? (share - from) / (to - from) : 0;
  const mixed = [1, 3, 5].map((at) => {
    const [low, high] = [one, other].map((colour) => parseInt(colour.slice(at, at + 2), 16));
    return Math.round(low + (high - low) * part);
  });
  return `rgb(${mixed.join()})`;
}

/* Shapes and notes */

function paintShape(pen, shape, frame) {
  const y = shape.yref === "paper" ? frame.share : frame.y;
  const [x0, x1, y0, y1] = [frame.x.at(shape.x0), frame.x.at(shape.x1), y.at(shape.y0), y.at(shape.y1)];
  pen.globalAlpha = shape.opacity ?? 1;
  if (shape.type === "rect") {
    pen.fillStyle = shape.fillcolor;
    pen.fillRect(Math.min(x0, x1), Math.min(y0, y1), Math.max(1, Math.abs(x1 - x0)), Math.abs(y1 - y0));
  } else {
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    stroke(pen, shape.line);
  }
  pen.globalAlpha = 1;
}

function paintNote(pen, note, layout, frame) {
  if (note.showarrow) {
    paintArrow(pen, frame.x.at(note.ax), frame.share.at(note.ay), frame.x.at(note.x), frame.share.at(note.y), note);
    return;
  }
  const y = note.yref === "paper" ? frame.share : frame.y;
  pen.save();
  pen.font = fontOf({ ...layout.font, ...note.font });
  pen.translate(frame.x.at(note.x), y.at(note.y));
  if (note.textangle) pen.rotate((note.textangle * Math.PI) / 180);
  [pen.textAlign, pen.textBaseline] = note.textangle ? ["left", "bottom"] : ["center", "middle"];
  if (note.bgcolor) {
    const [wide, high] = [pen.measureText(note.text).width + 2 * note.borderpad, note.font.size + 2 * note.borderpad];
    pen.fillStyle = note.bgcolor;
    pen.fillRect(-wide / 2, -high / 2, wide, high);
  }
  pen.fillStyle = note.font.color;
  pen.fillText(note.text, 0, note.textangle ? -2 : 0);
  pen.restore();
}

function paintArrow(pen, fromX, fromY, toX, toY, { arrowcolor, arrowwidth }) {
  const angle = Math.atan2(toY - fromY, toX - fromX);
  const corner = (turn) => [toX - 8 * Math.cos(angle + turn), toY - 8 * Math.sin(angle + turn)];
  pen.beginPath();
  pen.moveTo(fromX, fromY);
  pen.lineTo(toX - 5 * Math.cos(angle), toY - 5 * Math.sin(angle));
  stroke(pen, { color: arrowcolor, width: arrowwidth });
  pen.beginPath();
  pen.moveTo(toX, toY);
  for (const turn of [0.4, -0.4]) pen.lineTo(...corner(turn));
  pen.fillStyle = arrowcolor;
  pen.fill();
}

/* Axes */

function paintGrid(pen, { yaxis }, frame) {
  if (yaxis.showgrid === false) return;
  for (const [value] of ticksOf(yaxis, yaxis.nticks ?? MOST_TICKS)) {
    const top = Math.round(frame.y.at(value)) + 0.5;
    pen.beginPath();
    pen.moveTo(frame.left, top);
    pen.lineTo(frame.right, top);
    stroke(pen, { color: yaxis.gridcolor, width: 1 });
  }
}

function paintAxes(pen, { xaxis, yaxis, font }, frame) {
  paintAcross(pen, xaxis, font, frame);
  if (yaxis.showticklabels !== false) paintUp(pen, yaxis, font, frame);
}

function paintAcross(pen, axis, font, frame) {
  [pen.font, pen.textBaseline, pen.textAlign] = [fontOf(font), "top", "left"];
  for (const [value, text] of fittingTicks(pen, axis, frame)) {
    const at = frame.x.at(value);
    if (axis.hasTicks) paintTick(pen, axis, at, frame.bottom, at, frame.bottom + TICK);
    pen.fillStyle = axis.color;
    text.split("\n").forEach((line, place) => {
      const wide = pen.measureText(line).width;
      const left = Math.min(Math.max(1, at - wide / 2), frame.width - wide - 1);
      pen.fillText(line, left, frame.bottom + (axis.hasTicks ? TICK + 3 : 6) + place * font.size * LINE_HEIGHT);
    });
  }
}

/** As many ticks as there is room for their texts. */
function fittingTicks(pen, axis, frame) {
  for (let most = axis.nticks ?? MOST_TICKS; ; most -= 1) {
    const ticks = ticksOf(axis, most);
    const widest = ticks.reduce((wide, [, text]) => Math.max(wide, pen.measureText(text).width), 0);
    if (axis.tickvals || most <= 1 || ticks.length * (widest + 14) <= frame.right - frame.left + widest) return ticks;
  }
}

function paintUp(pen, axis, font, frame) {
  [pen.font, pen.textBaseline, pen.textAlign] = [fontOf({ ...font, ...axis.tickfont }), "middle", "right"];
  for (const [value, text] of ticksOf(axis, axis.nticks ?? MOST_TICKS)) {
    const at = frame.y.at(value);
    if (axis.hasTicks) paintTick(pen, axis, frame.left - TICK, at, frame.left, at);
    pen.fillStyle = axis.color;
    pen.fillText(text, frame.left - (axis.hasTicks ? TICK + 3 : 6), at);
  }
}

function paintTick(pen, { tickcolor }, x0, y0, x1, y1) {
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  stroke(pen, { color: tickcolor, width: 1 });
}
