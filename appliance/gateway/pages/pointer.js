// A click counts for the button that was under the pointer when that came to rest, whatever has moved there since.

import { toast } from "./toast.js";

const JITTER = 6; // pixels by which a hand moves while it presses
const GRACE_MS = 300; // what has moved so lately was not aimed at
const ANCHORED_MS = 150; // a scroll that comes so soon after a change is the browser's own

const actions = new WeakMap(); // button → what it does, called with its verb
const movedAt = new WeakMap(); // row → when the page moved it
let changedAt = 0;
let rest = null; // where the pointer is: { x, y, at, button, verb, used }

// Has `act` called for a click on the button, with the verb in its data that was there for the eye.
export function onClick(button, act) {
  actions.set(button, act);
}

// Changes the page, and notes which rows that has moved in the window.
export function moving(rows, change) {
  const before = rows.map((row) => row.getBoundingClientRect().top);
  change();
  const now = performance.now();
  rows.forEach((row, i) => {
    if (row.isConnected && Math.abs(row.getBoundingClientRect().top - before[i]) > 1) movedAt.set(row, (changedAt = now));
  });
}

function buttonOf(event) {
  return event.target.closest?.("button") ?? null;
}

function look(event) {
  const isHere = rest && Math.hypot(event.clientX - rest.x, event.clientY - rest.y) <= JITTER;
  if (isHere && (rest.used || rest.at < changedAt)) return;
  const button = buttonOf(event);
  rest = { x: event.clientX, y: event.clientY, at: performance.now(), button, verb: button?.dataset.verb, used: false };
}

function hasJustMoved(button) {
  return performance.now() - (movedAt.get(button?.closest("li, .channel")) ?? -GRACE_MS) < GRACE_MS;
}

document.addEventListener("pointermove", look);
document.addEventListener("pointerdown", (event) => {
  if (event.pointerType === "touch") rest = null;
  look(event);
  if (event.pointerType === "touch" && hasJustMoved(rest.button)) rest.button = null;
});
document.addEventListener("scroll", () => {
  if (performance.now() - changedAt > ANCHORED_MS) rest = null;
});
document.addEventListener(
  "click",
  (event) => {
    const button = buttonOf(event);
    if (!event.detail) return actions.get(button)?.(button.dataset.verb); // by a key
    const aimed = rest && !rest.used ? rest : { button: hasJustMoved(button) ? null : button, verb: button?.dataset.verb };
    if (rest) rest.used = true;
    if (!actions.has(button) && !actions.has(aimed.button)) return;
    if (button !== aimed.button) event.stopPropagation(), event.preventDefault();
    if (actions.has(aimed.button)) actions.get(aimed.button)(aimed.verb);
    else toast("The list has just moved, so nothing was done. Click again.", { isBad: true });
  },
  true,
);
