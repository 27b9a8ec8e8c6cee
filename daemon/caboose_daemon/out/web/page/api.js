/* Talks to the daemon: JSON answers, and the live stream with its reconnections. */

const ANSWER_MS = 15000;
const SILENCE_MS = 10000;
const RETRY_MS = 1500;
/** A tab hidden for this long closes its stream: a browser allows six connections per host, for all tabs together. */
const HIDDEN_MS = 10000;
const EVENTS = ["status", "step", "finding", "incident", "decision", "ledger", "event", "attempt", "sample", "reload"];

/** An error answer; `status` is 0 if there was no answer. */
export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** The JSON at a path under /api/v1; `signal` cancels the request. */
export async function get(path, signal) {
  let response, body;
  try {
    const limits = [AbortSignal.timeout(ANSWER_MS), ...(signal ? [signal] : [])];
    response = await fetch(`api/v1/${path}`, { signal: AbortSignal.any(limits), cache: "no-store" });
    body = await response.json();
  } catch (problem) {
    throw new ApiError(0, String(problem));
  }
  if (!response.ok) throw new ApiError(response.status, body?.error ?? `HTTP ${response.status}`);
  return body;
}

export const jobPath = (job, rest = "") => `jobs/${encodeURIComponent(job)}${rest}`;

/**
 * The live stream of one job, or, for null, the status of all jobs. `onOpen` is called after every (re)connection, when
 * everything must be loaded again; `onLost` when it breaks; `onPause` when a hidden tab closes it until it is visible
 * again. The daemon sends a status every second, so a long silence also counts as broken.
 */
export function openStream(job, { onOpen, onLost, onPause, onEvent }) {
  const address = job === null ? "api/v1/stream?kinds=" : `api/v1/stream?job=${encodeURIComponent(job)}`;
  let source = null;
  let heard = 0;
  let isPaused = false;
  let hiding = 0;

  function connect() {
    source?.close();
    if (isPaused) return;
    heard = performance.now();
    source = new EventSource(address);
    source.onopen = () => {
      heard = performance.now();
      onOpen();
    };
    source.onerror = () => {
      onLost();
      // The browser retries, unless the daemon answered with an error.
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
    };
    for (const kind of EVENTS) {
      source.addEventListener(kind, (message) => {
        heard = performance.now();
        onEvent(kind, JSON.parse(message.data));
      });
    }
  }

  function watchVisibility() {
    clearTimeout(hiding);
    if (document.hidden) {
      hiding = setTimeout(() => {
        isPaused = true;
        source.close();
        onPause();
      }, HIDDEN_MS);
    } else if (isPaused) {
      isPaused = false;
      connect();
    }
  }

  connect();
  watchVisibility();
  document.addEventListener("visibilitychange", watchVisibility);
  setInterval(() => {
    if (isPaused || performance.now() - heard < SILENCE_MS) return;
    onLost();
    connect();
  }, 1000);
}
