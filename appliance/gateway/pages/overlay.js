// What a channel speaks, heard and shown: ?channel=NAME&voice=off&captions=off&token=TOKEN

import { follow } from "./api.js";
import { Player, fromBase64 } from "./player.js";

const parameters = new URLSearchParams(location.search);
const channel = parameters.get("channel") ?? "";
const isHeard = parameters.get("voice") !== "off";
const isShown = parameters.get("captions") !== "off";
const LATE_S = 0.5; // what began before that is joined where it is now
const captions = document.getElementById("captions");
const unmute = document.getElementById("unmute");
const problem = document.getElementById("problem");

export const player = new Player();
window.player = player;

function begin({ utterance, sample_rate_hertz: rate, playout, words }) {
  const late_s = -utterance.starts_in_ms / 1000;
  const from = late_s > LATE_S ? Math.round(late_s * rate) : 0;
  const line = playout === "OVERLAP" ? `request ${utterance.request_id}` : `channel ${utterance.channel}`;
  player.begin(utterance.request_id, { rate, line, from, info: { utterance, words } });
  showState();
}

function audio({ request_id: id, data, sample_offset: offset, last, words, segment }) {
  if (words.length) correct(id, segment, words);
  const bytes = fromBase64(data);
  player.audio(id, Number(offset), isHeard ? bytes : new Uint8Array(bytes.length), last);
}

const corrected = new Map();

function correct(id, segment, words) {
  if (!corrected.has(id)) corrected.set(id, new Map());
  corrected.get(id).set(segment, words);
}

function wordsOf(id, info) {
  const known = corrected.get(id);
  const segments = new Map();
  for (const word of info.words) {
    if (!segments.has(word.segment)) segments.set(word.segment, []);
    segments.get(word.segment).push(word);
  }
  return [...segments].flatMap(([segment, words]) => known?.get(segment) ?? words);
}

function end({ request_id: id, reason }) {
  // SPOKEN is the daemon's reckoning, and this player may be a little behind it.
  if (reason !== "SPOKEN" || player.blocked) player.stop(id);
  setTimeout(() => corrected.delete(id), 60_000);
}

function paused({ channels }) {
  player.hold(channel !== "" && channels.includes(channel));
}

function showState() {
  unmute.hidden = !player.blocked;
}

function show() {
  const shown = new Map([...captions.children].map((element) => [element.dataset.id, element]));
  for (const { id, info, at } of player.sounding()) {
    const words = wordsOf(id, info);
    const element = shown.get(id) ?? captions.appendChild(caption(id, info, words));
    shown.delete(id);
    element.querySelectorAll(".word").forEach((span, index) => {
      const word = words[index];
      span.classList.toggle("now", word.start_s <= at && at < word.end_s);
      span.classList.toggle("said-already", word.end_s <= at);
    });
  }
  for (const element of shown.values()) element.remove();
  requestAnimationFrame(show);
}

function caption(id, { utterance }, words) {
  const element = document.createElement("p");
  element.className = "said";
  element.dataset.id = id;
  const who = document.createElement("span");
  who.className = "who";
  who.textContent = utterance.user_key || utterance.voice;
  element.append(who);
  let place = 0;
  for (const { word } of words) {
    const at = utterance.text.indexOf(word, place);
    if (at > place) element.append(utterance.text.slice(place, at));
    const span = document.createElement("span");
    span.className = "word";
    span.textContent = word;
    element.append(span);
    place = at < 0 ? place : at + word.length;
  }
  return element;
}

function connected(on) {
  problem.hidden = on;
  problem.textContent = on ? "" : "The voice box cannot be reached; trying again …";
}

player.addEventListener("state", showState);
for (const gesture of ["click", "keydown"]) document.addEventListener(gesture, () => player.resume());
player.open(24000);
showState();
setTimeout(showState, 500);
follow("/api/listen", { channel }, { begin, audio, end, paused }, connected);
if (isShown) requestAnimationFrame(show);
else setInterval(() => player.sounding(), 5000); // forgets what has been played
