/* Talks to the daemon: JSON answers, and the live stream with its reconnections. */

const ANSWER_MS = 15000;
const SILENCE_MS = 10000;
const RETRY_MS = 1500;
/** A tab that nobody has looked at for so long gives its stream back: a browser has six connections to a host, for all tabs. */
const HIDDEN_MS = 10000;
const EVENTS = ["status", "step", "finding", "incident", "decision", "ledger", "event", "attempt", "sample", "reload"];

/** An answer that is an error; `status` is 0 when there was no answer. */
export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** The JSON at a path under /api/v1; `signal` gives the question up. */
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
 * The live stream of one job, or, for null, of how all jobs stand. `onOpen` comes after every (re)connection, when everything must be loaded again;
 * `onLost` when it breaks; `onPause` when a hidden tab gives it back until somebody looks again. The daemon speaks every
 * second, so a stream that is quiet for long is broken too.
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
      // The browser retries by itself, unless the daemon answered with an error.
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
    };
    for (const kind of EVENTS) {
      source.addEventListener(kind, (message) => {
        heard = performance.now();
        onEvent(kind, JSON.parse(message.data));
      });
    }
  }

  function watchSight() {
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
  watchSight();
  document.addEventListener("visibilitychange", watchSight);
  setInterval(() => {
    if (isPaused || performance.now() - heard < SILENCE_MS) return;
    onLost();
    connect();
  }, 1000);
}
