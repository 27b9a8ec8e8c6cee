/* The address's hash: an incident and a layer, as in `#incident=3&layer=blocks.0.weight`. */

const parts = () => new URLSearchParams(location.hash.slice(1));

/** The value of a key in the hash; an empty string if missing. */
export const inHash = (key) => parts().get(key) ?? "";

/** The hash with this key set, or removed if the value is empty; other keys stay. */
export function hashWith(key, value) {
  const named = parts();
  if (value === "") named.delete(key);
  else named.set(key, value);
  const kept = [...named].filter(([, text]) => text !== "").map(([name, text]) => `${name}=${encodeURIComponent(text)}`);
  return kept.length ? `#${kept.join("&")}` : "";
}
