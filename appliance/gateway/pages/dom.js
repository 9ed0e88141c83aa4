// Elements of a page.

export const at = (id) => document.getElementById(id);

export function element(name, kind = "", text = "") {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text) made.textContent = text;
  return made;
}

// Writes what differs alone: a selection stays, and a screen reader its place.
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
