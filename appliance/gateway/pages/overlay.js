// What a channel speaks, heard and shown: ?channel=NAME&voice=off&captions=off&mouth=on&token=TOKEN

import { follow } from "./api.js";
import { Player, fromBase64 } from "./player.js";

const parameters = new URLSearchParams(location.search);
const channel = parameters.get("channel") ?? "";
const isHeard = parameters.get("voice") !== "off";
const isShown = parameters.get("captions") !== "off";
const hasMouth = parameters.get("mouth") === "on";
const MOUTH_S = 0.02; // of a frame of the mouth track
const SPEAKING = 0x42; // a frame: half open
const WIDTHS = [26, 24, 30, 38, 18, 32]; // of the shapes: rest, closed, open, wide, round, teeth
const LATE_S = 0.5; // what began before that is joined where it is now
const stillness = matchMedia("(prefers-reduced-motion: reduce)");
const captions = document.getElementById("captions");
const mouth = document.getElementById("mouth");
const unmute = document.getElementById("unmute");
const problem = document.getElementById("problem");

export const player = new Player();
window.player = player;

function begin({ utterance, sample_rate_hertz: rate, playout, words }) {
  const late_s = -utterance.starts_in_ms / 1000;
  const from = late_s > LATE_S ? Math.round(late_s * rate) : 0;
  const line = playout === "OVERLAP" ? `request ${utterance.request_id}` : `channel ${utterance.channel}`;
  player.begin(utterance.request_id, { rate, line, channel: utterance.channel, from, info: { utterance, words } });
  showState();
}

function audio({ request_id: id, data, sample_offset: offset, last, words, segment, mouth: frames }) {
  if (words.length) correct(id, segment, words);
  // After a lost connection it comes again from its beginning.
  const before = Number(offset) ? (tracks.get(id) ?? []) : [];
  if (hasMouth) tracks.set(id, [...before, ...fromBase64(frames)]);
  const bytes = fromBase64(data);
  player.audio(id, Number(offset), isHeard ? bytes : new Uint8Array(bytes.length), last);
}

const corrected = new Map();
export const tracks = new Map();

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
  setTimeout(() => { corrected.delete(id); tracks.delete(id); }, 60_000);
}

function paused({ channels }) {
  player.hold(channels);
}

function showState() {
  unmute.hidden = !player.blocked;
}

function move(sounding) {
  const frames = sounding
    .filter(({ isHeld }) => !isHeld)
    .map(({ id, at }) => (stillness.matches ? SPEAKING : (tracks.get(id)?.[Math.floor(at / MOUTH_S)] ?? 0)));
  const widest = Math.max(0, ...frames);
  const [level, shape] = [widest >> 4, widest & 15];
  const lips = mouth.firstElementChild;
  lips.setAttribute("rx", WIDTHS[shape]);
  lips.setAttribute("ry", shape === 1 ? 2 : 2 + 1.4 * level);
}

function show() {
  const sounding = player.sounding();
  if (hasMouth) move(sounding);
  if (isShown) caption(sounding);
  requestAnimationFrame(show);
}

function caption(sounding) {
  const shown = new Map([...captions.children].map((element) => [element.dataset.id, element]));
  for (const { id, info, at } of sounding) {
    const words = wordsOf(id, info);
    const element = shown.get(id) ?? captions.appendChild(paragraph(id, info));
    shown.delete(id);
    for (const span of element.querySelectorAll(".word")) {
      const first = words[span.dataset.first];
      const last = words[span.dataset.last];
      span.classList.toggle("now", first.start_s <= at && at < last.end_s);
      span.classList.toggle("said-already", last.end_s <= at);
    }
    keepInSight(element.querySelector(".text"));
  }
  for (const element of shown.values()) element.remove();
}

// Keeps the word that is being said in the middle of a caption that is higher than its place.
function keepInSight(text) {
  const now = text.querySelector(".now");
  if (!now || now.dataset.first === text.dataset.inSight) return;
  text.dataset.inSight = now.dataset.first;
  text.scrollTop = now.offsetTop - (text.clientHeight - now.offsetHeight) / 2;
}

// The text as it was written; each place of it is marked while the words that it is spoken by sound.
function paragraph(id, { utterance, words }) {
  const element = document.createElement("p");
  element.className = "said";
  element.dataset.id = id;
  const who = element.appendChild(document.createElement("span"));
  who.className = "who";
  who.textContent = utterance.user_key || utterance.voice;
  const text = element.appendChild(document.createElement("span"));
  text.className = "text";
  const written = [...utterance.written];
  let place = 0;
  let span = null;
  words.forEach(({ written_begin: begin, written_end: end }, index) => {
    if (end > place) {
      text.append(written.slice(place, begin).join(""));
      span = text.appendChild(document.createElement("span"));
      span.className = "word";
      span.textContent = written.slice(begin, end).join("");
      span.dataset.first = index;
      place = end;
    }
    if (span) span.dataset.last = index;
  });
  text.append(written.slice(place).join(""));
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
mouth.toggleAttribute("hidden", !hasMouth);
if (isShown || hasMouth) requestAnimationFrame(show);
else setInterval(() => player.sounding(), 5000); // forgets what has been played
