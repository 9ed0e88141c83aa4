// The queue: a block for each channel, a row for each line. An element lasts as long as what it shows, and for a moment longer.

import { call } from "./api.js";
import { at, element, write } from "./dom.js";
import { moving, onClick } from "./pointer.js";
import { preview, stopPreview } from "./preview.js";
import { toast } from "./toast.js";
import { factsOf, quoted, reasonOf, writtenOf } from "./words.js";

const STAYS_MS = 1000; // what has ended stays in its place, and what was decided keeps its buttons
const TELL_MS = 5000; // between two words to a screen reader about the number of held lines
const STATES = { WAITING: "waits", HELD: "waits for approval", SOUNDING: "on air" };
const KEYS = { a: "approve", r: "reject" };
const PLACES = { stop: "listen", undo: "approve", cancel: "reject", resume: "pause", unmoderate: "moderate" }; // of verbs that take another's
const BACK = { pause: "resume", resume: "pause", moderate: "unmoderate", unmoderate: "moderate" };
const DONE = { pause: "Paused", resume: "Resumed", moderate: "Now moderated:", unmoderate: "No longer moderated:" };

const blocks = new Map(); // channel → { element, title, mode, verbs, list, emptyAt }
const lines = new Map(); // request id → { utterance, element, …, ended, calmAt, isOurs: decided on here, isApproved: here, noUndo }
let modes = { paused: [], paused_since: [], moderated: [] };
let isFresh = false; // the next event has all that is there
let moved = { row: null, at: 0 }; // where this page itself has put the focus, and when
let sweeping = 0;
let failed = () => {};

// `whenFailed` is called with each error of a verb.
export function startQueue(whenFailed) {
  failed = whenFailed;
  const kept = localStorage.getItem("keys");
  at("keys").checked = kept !== "off";
  at("keys").addEventListener("change", () => localStorage.setItem("keys", at("keys").checked ? "on" : "off"));
}

// Events.

export function connected(on) {
  isFresh = on;
  at("channels").classList.toggle("stale", !on);
}

export function changed({ utterances, ...now }) {
  modes = now;
  steadily(() => {
    const there = new Set(utterances.map((one) => one.request_id));
    if (isFresh) for (const [id, line] of lines) if (!there.has(id)) end(line, "ended");
    isFresh = false;
    for (const utterance of utterances) {
      if (utterance.state !== "ENDED") put(utterance);
      else if (lines.has(utterance.request_id)) end(lines.get(utterance.request_id), reasonOf(utterance));
    }
    showAll();
  });
}

function put(utterance) {
  const line = lines.get(utterance.request_id) ?? newLine(utterance);
  if (line.utterance.state === "HELD" && utterance.state !== "HELD") calm(line);
  if (utterance.state === "SOUNDING") line.noUndo();
  Object.assign(line, { utterance, ended: "" });
}

function end(line, why) {
  if (line.ended) return;
  line.ended = why;
  line.noUndo();
  calm(line);
}

// A line that has changed is left as it was for a second; its buttons do nothing more.
function calm(line) {
  line.calmAt = performance.now() + STAYS_MS;
  sweeping ||= setTimeout(sweep, STAYS_MS + 50);
}

function sweep() {
  sweeping = 0;
  const now = performance.now();
  steadily(() => {
    for (const [id, line] of lines) {
      if (!line.ended || line.calmAt > now) continue;
      line.element.remove();
      lines.delete(id);
    }
    showAll();
  });
  if ([...lines.values()].some((line) => line.calmAt > now)) sweeping ||= setTimeout(sweep, STAYS_MS);
}

// Changes the queue. The focus stays, or goes to the next row that is left; rows that move are noted.
function steadily(change) {
  const row = document.activeElement?.closest?.("#channels li");
  const all = [...document.querySelectorAll("#channels li")];
  const place = all.indexOf(row);
  const had = document.activeElement?.closest?.("#channels");
  moving([...all, ...[...blocks.values()].map((block) => block.element)], change);
  if (!had || document.activeElement !== document.body) return;
  const next = [row, ...all.slice(place + 1), ...all.slice(0, Math.max(place, 0)).reverse()].find((one) => one?.isConnected);
  moved = { row: next, at: performance.now() };
  (next ?? at("queue-title")).focus();
}

// Elements.

function newLine(utterance) {
  const made = element("li");
  made.tabIndex = -1;
  made.dataset.id = utterance.request_id;
  const words = made.appendChild(element("p"));
  words.id = `line-${utterance.request_id}`;
  made.setAttribute("aria-labelledby", words.id);
  const line = {
    utterance,
    element: made,
    text: words.appendChild(element("span")),
    written: words.appendChild(element("small", "written")),
    facts: words.appendChild(element("small")),
    verbs: made.appendChild(element("div", "verbs")),
    calmAt: 0,
    isOurs: false,
    isApproved: false,
    isPlaying: false,
    noUndo: () => {},
  };
  lines.set(utterance.request_id, line);
  return line;
}

function newBlock(channel) {
  const made = element("div", "channel");
  const head = made.appendChild(element("div", "head"));
  const name = head.appendChild(element("div", "name"));
  const block = {
    element: made,
    title: name.appendChild(element("h3")),
    mode: name.appendChild(element("p", "mode")),
    verbs: head.appendChild(element("div", "verbs")),
    list: made.appendChild(element("ol")),
    emptyAt: null,
  };
  const after = [...blocks.keys()].sort().find((name) => name > channel);
  at("channels").insertBefore(made, after === undefined ? null : blocks.get(after).element);
  blocks.set(channel, block);
  return block;
}

function showAll() {
  for (const name of [...modes.paused, ...modes.moderated]) blocks.get(name) ?? newBlock(name);
  for (const line of lines.values()) showLine(line);
  for (const [name, block] of blocks) showBlock(name, block);
  at("nothing").hidden = blocks.size > 0;
  countHeld();
}

function showBlock(name, block) {
  const place = modes.paused.indexOf(name);
  const isModerated = modes.moderated.includes(name);
  if (place < 0 && !isModerated && !block.list.children.length) {
    // It too stays for a second.
    block.emptyAt ??= performance.now();
    if (performance.now() - block.emptyAt >= STAYS_MS) block.element.remove(), blocks.delete(name);
    else sweeping ||= setTimeout(sweep, STAYS_MS);
    return;
  }
  block.emptyAt = null;
  const since = new Date(1e3 * modes.paused_since[place]).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  write(block.title, name || "No channel");
  write(block.mode, [place < 0 ? "" : `paused since ${since}`, isModerated ? "moderated" : ""].filter(Boolean).join(", "));
  if (!name) return;
  const verbs = ["skip", "clear", place < 0 ? "pause" : "resume", isModerated ? "unmoderate" : "moderate"];
  showVerbs(block.verbs, verbs, name, (verb) => moderate(name, verb));
}

function showLine(line) {
  const { utterance, element: row } = line;
  const list = (blocks.get(utterance.channel) ?? newBlock(utterance.channel)).list;
  if (row.parentNode !== list) list.append(row);
  const isCalm = performance.now() < line.calmAt;
  row.className = line.ended ? "ended" : { HELD: "held", SOUNDING: "sounds" }[utterance.state] ?? "";
  write(line.text, utterance.text);
  write(line.written, writtenOf(utterance));
  write(line.facts, factsOf(utterance, line.ended || STATES[utterance.state]));
  for (const button of line.verbs.children) button.setAttribute("aria-disabled", isCalm || Boolean(line.ended));
  if (isCalm || line.ended) return;
  const undo = line.isApproved && utterance.state === "WAITING" ? ["undo"] : [];
  const held = [line.isPlaying ? "stop" : "listen", "approve", "reject"];
  showVerbs(line.verbs, utterance.state === "HELD" ? held : [...undo, "cancel"], utterance.text, (verb) => decide(line, verb));
}

// A verb that takes the place of another takes its button, and so the focus.
function showVerbs(row, verbs, name, act) {
  const left = new Map([...row.children].map((button) => [button.dataset.place, button]));
  verbs.forEach((verb, index) => {
    const place = PLACES[verb] ?? verb;
    let button = left.get(place);
    left.delete(place);
    if (!button) {
      button = element("button");
      button.type = "button";
      button.dataset.place = place;
      onClick(button, act);
      row.insertBefore(button, row.children[index] ?? null);
    }
    if (button.dataset.verb === verb && button.dataset.name === name) return;
    Object.assign(button.dataset, { verb, name });
    button.className = verb === "approve" ? "main" : "";
    button.textContent = verb[0].toUpperCase() + verb.slice(1);
    button.setAttribute("aria-label", `${verb} ${name}`);
    button.removeAttribute("aria-disabled");
  });
  for (const button of left.values()) button.remove();
}

let toldAt = 0;
let telling = 0;

// The title has the number at once; a screen reader hears of it now and then.
function countHeld() {
  const count = [...lines.values()].filter((line) => line.utterance.state === "HELD" && !line.ended).length;
  const text = count ? `${count} ${count === 1 ? "line waits" : "lines wait"} for approval` : "";
  document.title = count ? `(${count}) Voice box` : "Voice box";
  write(at("count"), text);
  clearTimeout(telling);
  telling = setTimeout(() => {
    toldAt = performance.now();
    write(at("announce"), text);
  }, Math.max(toldAt + TELL_MS - performance.now(), 500));
}

// Verbs.

async function post(path, body = {}) {
  try {
    return await (await call(path, { body })).json();
  } catch (error) {
    toast(error.message, { isBad: true });
    failed(error);
    return null;
  }
}

function ofChannel(channel, verb, body) {
  return post(`/api/channels/${encodeURIComponent(channel)}/${verb}`, body);
}

async function moderate(channel, verb) {
  const answer = await ofChannel(channel, verb);
  if (!answer) return;
  if (verb in BACK) {
    const undo = () => moderate(channel, BACK[verb]);
    return toast(`${DONE[verb]} ${channel}`, { undo, undone: `${verb} ${channel}` });
  }
  const [done, none] = verb === "skip" ? ["Skipped", "sounds"] : ["Cleared", "waits"];
  const ended = answer.ended.length === 1 ? quoted(answer.ended[0]) : `${answer.ended.length} lines on ${channel}`;
  toast(answer.ended.length ? `${done} ${ended}` : `Nothing ${none} on ${channel}`);
}

async function decide(line, verb) {
  const { channel, request_id, state } = line.utterance;
  const body = { request_id };
  const isLate = line.ended || performance.now() < line.calmAt || (verb in { listen: 1, approve: 1, reject: 1 } && state !== "HELD");
  if (isLate && line.isOurs) return; // a second click
  if (isLate) return toast(`${quoted(line.utterance)} is ${line.ended || "decided on"} already: nothing was done.`, { isBad: true });
  if (verb === "listen") return listen(line);
  if (line.isPlaying) stopPreview();
  if (verb === "stop") return;
  calm(line);
  line.isOurs = true;
  for (const button of line.verbs.children) button.setAttribute("aria-disabled", true);
  if (verb === "cancel") {
    if (await post(`/api/requests/${encodeURIComponent(request_id)}/cancel`)) toast(`Cancelled ${quoted(line.utterance)}`);
    return;
  }
  const answer = await ofChannel(channel, verb === "undo" ? "reject" : verb, body);
  if (!answer) return;
  const [done] = answer.approved ?? answer.ended;
  if (!done) return toast(`${quoted(line.utterance)} was decided on by somebody else: nothing was done.`, { isBad: true });
  if (verb === "undo") return toast(`Taken back: ${quoted(line.utterance)} is rejected.`);
  if (verb === "reject") return toast(`Rejected ${quoted(line.utterance)}`);
  if (done.state === "ENDED") return toast(`${quoted(line.utterance)} came too late: ${reasonOf(done)}.`, { isBad: true });
  line.isApproved = true;
  const undo = () => {
    line.calmAt = 0;
    decide(line, "undo");
  };
  line.noUndo = toast(`Approved ${quoted(line.utterance)}`, { undo, undone: `approve ${line.utterance.text}` });
  if (done.state === "SOUNDING" || line.utterance.state === "SOUNDING" || line.ended) line.noUndo();
}

async function listen(line) {
  const show = (isPlaying) => {
    line.isPlaying = isPlaying;
    steadily(showAll);
  };
  show(true);
  try {
    await preview(line.utterance, (made) => {
      const whole = line.utterance.length_ms / 1000;
      if (made < 0.9 * whole) toast(`${quoted(line.utterance)}: ${made.toFixed(1)} of about ${whole.toFixed(1)} s are made so far.`);
    });
  } catch (error) {
    toast(error.status === 404 ? `${quoted(line.utterance)} is not made yet: listen again in a moment.` : error.message, { isBad: true });
    failed(error);
  }
  show(false);
}

// A and R decide on the row that has the focus; arrows move it.
document.addEventListener("keydown", (event) => {
  const row = event.target.closest?.("#channels li");
  if (!row || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) {
    event.preventDefault();
    const all = [...document.querySelectorAll("#channels li")];
    all[all.indexOf(row) + step]?.focus();
    return;
  }
  const verb = KEYS[event.key.toLowerCase()];
  if (!verb || !at("keys").checked || (row === moved.row && performance.now() - moved.at < STAYS_MS)) return;
  decide(lines.get(row.dataset.id), verb);
});
