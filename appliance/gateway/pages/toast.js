// Messages about what was done, at the foot of the page, some with a way back.

import { at, element } from "./dom.js";

const SHOWN_MS = 8000;
const MOST = 2;

// `undo` is called once, by a button. Returns what takes that button away.
export function toast(text, { isBad = false, undo = null, undone = "" } = {}) {
  const made = element("p", isBad ? "toast bad" : "toast");
  made.append(element("span", "", text));
  const opener = document.activeElement;
  if (undo) {
    const button = made.appendChild(element("button", "", "Undo"));
    button.type = "button";
    button.setAttribute("aria-label", `undo ${undone}`);
    button.addEventListener("click", () => {
      made.remove();
      if (opener?.isConnected) opener.focus();
      undo();
    });
  }
  at("message").append(made);
  while (at("message").children.length > MOST) at("message").firstElementChild.remove();
  leave(made);
  return () => made.querySelector("button")?.remove();
}

// A message that is pointed at, or has the focus, stays.
function leave(made) {
  setTimeout(() => (made.matches(":hover, :focus-within") ? leave(made) : made.remove()), SHOWN_MS);
}
