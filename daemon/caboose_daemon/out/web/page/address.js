/* What the address names beside the job: an incident and a layer, both at once, as in `#incident=3&layer=blocks.0.weight`. */

const parts = () => new URLSearchParams(location.hash.slice(1));

/** What the address names under this key; nothing is an empty text. */
export const inHash = (key) => parts().get(key) ?? "";

/** The address's end with this key set to a value, or without it where the value is empty; the other stays. */
export function hashWith(key, value) {
  const named = parts();
  if (value === "") named.delete(key);
  else named.set(key, value);
  const kept = [...named].filter(([, text]) => text !== "").map(([name, text]) => `${name}=${encodeURIComponent(text)}`);
  return kept.length ? `#${kept.join("&")}` : "";
}
