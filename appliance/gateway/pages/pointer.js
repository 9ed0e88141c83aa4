// A click counts for the button that was under the pointer when that came to rest, whatever has moved there since.

import { toast } from "./toast.js";

const JITTER = 6; // pixels by which a hand moves while it presses
const GRACE_MS = 300; // what has moved so lately was not aimed at
const ANCHORED_MS = 150; // a scroll that comes so soon after a change is the browser's own

const actions = new WeakMap(); // button → what it does, called with its verb
const movedAt = new WeakMap(); // row → when the page moved it
let changedAt = 0;
let rest = null; // where the pointer is: { x, y, at, button, verb, used }
let aim = null; // of the last press: { x, y, button, verb }

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
  const isTouch = event.pointerType === "touch";
  const isNew = isTouch || rest === null;
  if (isTouch) rest = null;
  look(event);
  const here = buttonOf(event);
  const isLate = (isNew || rest.used) && hasJustMoved(here);
  const seen = rest.used ? { button: here, verb: here?.dataset.verb } : rest;
  aim = { x: event.clientX, y: event.clientY, button: isLate ? null : seen.button, verb: seen.verb };
});
document.addEventListener("scroll", () => {
  if (performance.now() - changedAt > ANCHORED_MS) rest = null;
});
document.addEventListener(
  "click",
  (event) => {
    const here = buttonOf(event);
    if (!event.detail || !aim) return actions.get(here)?.(here.dataset.verb); // by a key
    const { button, verb, x, y } = aim;
    if (rest) rest.used = true;
    if (!actions.has(here) && !actions.has(button)) return;
    if (here !== button) event.stopPropagation(), event.preventDefault();
    const isHere = here === button || Math.hypot(event.clientX - x, event.clientY - y) <= JITTER; // or it was dragged away
    if (isHere && actions.has(button)) actions.get(button)(verb);
    else if (isHere) toast("The list has just moved, so nothing was done. Click again.", { isBad: true });
  },
  true,
);
