/* Talks to the daemon: JSON answers, and the live stream with its reconnections. */

const ANSWER_MS = 15000;
const SILENCE_MS = 10000;
const RETRY_MS = 1500;
const EVENTS = ["status", "step", "finding", "event", "attempt", "reload"];

/** An answer that is an error; `status` is 0 when there was no answer. */
export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** The JSON at a path under /api/v1. */
export async function get(path) {
  let response, body;
  try {
    response = await fetch(`api/v1/${path}`, { signal: AbortSignal.timeout(ANSWER_MS), cache: "no-store" });
    body = await response.json();
  } catch (problem) {
    throw new ApiError(0, String(problem));
  }
  if (!response.ok) throw new ApiError(response.status, body?.error ?? `HTTP ${response.status}`);
  return body;
}

export const jobPath = (job, rest = "") => `jobs/${encodeURIComponent(job)}${rest}`;

/**
 * The live stream of one job. `onOpen` comes after every (re)connection, when everything must be loaded again;
 * `onLost` when it breaks. The daemon speaks every second, so a stream that is quiet for long is broken too.
 */
export function openStream(job, { onOpen, onLost, onEvent }) {
  let source = null;
  let heard = 0;

  function connect() {
    source?.close();
    heard = performance.now();
    source = new EventSource(`api/v1/stream?job=${encodeURIComponent(job)}`);
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

  connect();
  setInterval(() => {
    if (performance.now() - heard < SILENCE_MS) return;
    onLost();
    connect();
  }, 1000);
}
