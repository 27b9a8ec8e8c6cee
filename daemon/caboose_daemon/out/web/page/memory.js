/* What the page remembers of a reader's choices. Storage may be forbidden; a choice then lasts as long as the page. */

export function recall(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // see above
  }
}
