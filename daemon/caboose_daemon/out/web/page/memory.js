/* The reader's stored choices. If storage is forbidden, a choice lasts as long as the page. */

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
