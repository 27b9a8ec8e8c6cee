/* The marks of a chart. Each severity and state has a shape, so that its colour is never the only signal. */

const polygon = (count, turn) => Array.from({ length: count }, (_, place) => {
  const angle = turn + (2 * Math.PI * place) / count;
  return [Math.cos(angle), Math.sin(angle)];
});
const CROSS = 0.3;
const OUTLINES = {
  octagon: polygon(8, Math.PI / 8),
  diamond: polygon(4, 0).map(([x, y]) => [x * 1.2, y * 1.2]),
  "triangle-up": polygon(3, -Math.PI / 2).map(([x, y]) => [x * 1.15, y * 1.15]),
  "triangle-left": polygon(3, Math.PI).map(([x, y]) => [x * 1.15, y * 1.15]),
  x: [[0, -1], [1, -2], [2, -1], [1, 0], [2, 1], [1, 2], [0, 1], [-1, 2], [-2, 1], [-1, 0], [-2, -1], [-1, -2]].map(([x, y]) => [x * 1.5 * CROSS, y * 1.5 * CROSS]),
};
const OPEN = "-open";

/** Draws one mark; its size is its width in pixels. */
export function drawSymbol(pen, name, x, y, size, colour, edge) {
  const isOpen = name.endsWith(OPEN);
  pen.beginPath();
  outline(pen, isOpen ? name.slice(0, -OPEN.length) : name, x, y, size / 2);
  if (!isOpen) {
    pen.fillStyle = colour;
    pen.fill();
  }
  if (!edge?.width) return;
  [pen.strokeStyle, pen.lineWidth] = [edge.color, edge.width];
  pen.stroke();
}

function outline(pen, name, x, y, radius) {
  const corners = OUTLINES[name];
  if (!corners) {
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    return;
  }
  for (const [dx, dy] of corners) pen.lineTo(x + dx * radius, y + dy * radius);
  pen.closePath();
}
