/*
 * Small curves for many jobs: each is loaded when it becomes visible, and then grows with the stream.
 *
 * At most MOST points are kept of a curve; of two neighbours that are merged, the one further from its other
 * neighbour stays, so that spikes are kept.
 */

const MOST = 90;
const AT_ONCE = 2;
const RETRY_MS = 3000;
const WIDE = 96;
const TALL = 22;
const SVG = "http://www.w3.org/2000/svg";

export class Sparklines {
  /** `load` gives a job's curve as [step, loss] pairs, or null if not available now. */
  constructor(load) {
    this._load = load;
    this._curves = new Map();
    this._waiting = [];
    this._numLoading = 0;
    this._seen = new IntersectionObserver((entries) => entries.forEach((entry) => this._noticed(entry)), { rootMargin: "100px" });
  }

  make(name) {
    const picture = document.createElementNS(SVG, "svg");
    picture.setAttribute("viewBox", `0 0 ${WIDE} ${TALL}`);
    picture.setAttribute("preserveAspectRatio", "none");
    picture.setAttribute("class", "sparkline");
    picture.setAttribute("aria-hidden", "true"); // the number is beside it
    picture.append(document.createElementNS(SVG, "path"));
    picture.dataset.job = name;
    this._curves.set(name, { picture, points: null, attempt: null, isAsked: false });
    this._seen.observe(picture);
    return picture;
  }

  /** Adds a job's current step and loss. */
  update(name, attempt, step, loss) {
    const curve = this._curves.get(name);
    if (!curve) return;
    if (curve.attempt !== null && curve.attempt !== attempt) curve.points = curve.points && [];
    curve.attempt = attempt;
    if (!curve.points || step <= (curve.points.at(-1)?.[0] ?? -1)) return;
    curve.points.push([step, loss]);
    if (curve.points.length > MOST) curve.points = thinned(curve.points);
    draw(curve);
  }

  _noticed({ target, isIntersecting }) {
    const curve = this._curves.get(target.dataset.job);
    if (!isIntersecting || !curve || curve.isAsked) return;
    curve.isAsked = true;
    this._waiting.push(curve);
    this._next();
  }

  async _next() {
    if (this._numLoading >= AT_ONCE || !this._waiting.length) return;
    const curve = this._waiting.shift();
    this._numLoading += 1;
    const points = await this._load(curve.picture.dataset.job);
    this._numLoading -= 1;
    if (points === null) setTimeout(() => this._again(curve), RETRY_MS);
    else {
      curve.points = points.length > MOST ? thinned(points) : points;
      draw(curve);
    }
    this._next();
  }

  _again(curve) {
    if (curve.picture.isConnected) this._waiting.push(curve);
    this._next();
  }
}

/** Half the points. */
function thinned(points) {
  const kept = [];
  for (let at = 0; at < points.length - 1; at += 2) {
    const before = kept.at(-1)?.[1] ?? points[at][1];
    const [one, two] = [points[at], points[at + 1]];
    kept.push(Math.abs(two[1] - before) > Math.abs(one[1] - before) ? two : one);
  }
  kept.push(points.at(-1));
  return kept;
}

/** A line through finite values, with gaps for others. */
function draw({ picture, points }) {
  const finite = points.filter(([, loss]) => Number.isFinite(loss) && loss !== null);
  if (finite.length < 2) {
    picture.firstElementChild.setAttribute("d", "");
    return;
  }
  const steps = points.map(([step]) => step);
  const losses = finite.map(([, loss]) => loss);
  const [first, last] = [steps[0], steps.at(-1)];
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  let path = "";
  let isDown = false;
  for (const [step, loss] of points) {
    if (loss === null || !Number.isFinite(loss)) {
      isDown = false;
      continue;
    }
    const x = ((step - first) / Math.max(1, last - first)) * (WIDE - 2) + 1;
    const y = high > low ? (1 - (loss - low) / (high - low)) * (TALL - 4) + 2 : TALL / 2;
    path += `${isDown ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    isDown = true;
  }
  picture.firstElementChild.setAttribute("d", path);
}
