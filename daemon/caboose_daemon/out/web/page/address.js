/* The address's hash: what the reader looks at, as in `#incident=3&layer=blocks.0.weight&range=100..200`. */

const parts = () => new URLSearchParams(location.hash.slice(1));

/** The value of a key in the hash; an empty string if missing. */
export const inHash = (key) => parts().get(key) ?? "";

/** Sets a key in the address, without an entry in the browser's history. */
export function replaceInHash(key, value) {
  if (inHash(key) === value) return;
  history.replaceState(history.state, "", `${location.pathname}${location.search}${hashWith(key, value)}`);
}

/** The hash with this key set, or removed if the value is empty; other keys stay. */
export function hashWith(key, value) {
  const named = parts();
  if (value === "") named.delete(key);
  else named.set(key, value);
  const kept = [...named].filter(([, text]) => text !== "").map(([name, text]) => `${name}=${encodeURIComponent(text)}`);
  return kept.length ? `#${kept.join("&")}` : "";
}
