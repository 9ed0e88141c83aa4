// The status page: a line to speak, the queue with a moderator's verbs, the box.

import { call, follow, keepToken } from "./api.js";
import { Player } from "./player.js";
import { showStored, startVoices } from "./voices.js";

const RATE = 24000; // of OpenAI's pcm
const LOOK_MS = 5000;
const at = (id) => document.getElementById(id);

export const player = new Player();
window.player = player;
let speaking = null;
let spoken = ""; // the id of the request that this page plays

at("speak").addEventListener("submit", async (event) => {
  event.preventDefault();
  player.stopAll();
  player.open(RATE);
  player.resume();
  speaking?.abort();
  const own = (speaking = new AbortController());
  at("stop").disabled = false;
  at("said").className = "hint";
  at("said").textContent = "…";
  const body = {
    model: "f5-tts",
    input: at("text").value,
    voice: at("voice").value,
    response_format: "pcm",
    ...(at("channel").value ? { channel: at("channel").value } : {}),
  };
  const begun = performance.now();
  try {
    const answer = await call("/v1/audio/speech", { body, signal: own.signal });
    spoken = answer.headers.get("x-request-id");
    player.begin(spoken, { rate: RATE });
    const samples = await play(spoken, answer.body.getReader(), () => {
      at("said").textContent = `First sound after ${Math.round(performance.now() - begun)} ms.`;
    });
    at("said").textContent += ` ${(samples / RATE).toFixed(1)} s of speech.`;
  } catch (error) {
    player.stopAll();
    if (own.signal.aborted) return;
    at("said").className = "hint bad";
    at("said").textContent = error.message;
    if (error.status === 401) askToken();
  }
});

// Returns the samples that came. A read may end within a sample.
async function play(id, reader, first) {
  let rest = new Uint8Array(0);
  let offset = 0;
  for (;;) {
    const { value, done } = await reader.read();
    const bytes = done ? rest : joined(rest, value);
    const whole = bytes.length & ~1;
    if (whole && !offset) first();
    player.audio(id, offset, bytes.subarray(0, whole), done);
    offset += whole / 2;
    rest = bytes.slice(whole);
    if (done) return offset;
  }
}

function joined(a, b) {
  const both = new Uint8Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}

at("stop").addEventListener("click", () => {
  speaking?.abort();
  player.stopAll();
  at("stop").disabled = true;
  at("said").textContent = "Stopped.";
});

// The queue.

const STATES = { WAITING: "waits", HELD: "waits for approval", SOUNDING: "sounds now" };
const KEYS = { a: "approve", r: "reject" };
const present = new Map();
let pausedChannels = [];
let pausedSince = [];
let moderatedChannels = [];

function changed({ utterances, paused, paused_since, moderated }) {
  pausedChannels = paused;
  pausedSince = paused_since;
  moderatedChannels = moderated;
  for (const utterance of utterances) {
    if (utterance.state === "ENDED") {
      present.delete(utterance.request_id);
      addRecent(utterance);
      if (utterance.reason !== "SPOKEN") stopOwn(utterance);
    } else present.set(utterance.request_id, utterance);
  }
  const channels = new Set([...pausedChannels, ...moderatedChannels, ...[...present.values()].map((one) => one.channel)]);
  at("channels").replaceChildren(...[...channels].sort().map(channelElement));
  at("nothing").hidden = channels.size > 0;
}

function stopOwn(utterance) {
  if (utterance.request_id !== spoken) return;
  speaking?.abort();
  player.stopAll();
  at("stop").disabled = true;
  at("said").textContent = `Ended: ${reasonOf(utterance)}.`;
}

function reasonOf(utterance) {
  return utterance.reason.toLowerCase().replaceAll("_", " ");
}

function channelElement(channel) {
  const isPaused = pausedChannels.includes(channel);
  const since = new Date(1e3 * pausedSince[pausedChannels.indexOf(channel)]);
  const mine = [...present.values()].filter((one) => one.channel === channel);
  const block = element("div", "channel");
  const row = block.appendChild(element("div", "row"));
  row.append(element("h3", "", (channel || "No channel") + (isPaused ? ` (paused since ${since.toLocaleString()})` : "")));
  if (channel) {
    const isModerated = moderatedChannels.includes(channel);
    const verbs = ["skip", "clear", isPaused ? "resume" : "pause", isModerated ? "unmoderate" : "moderate"];
    for (const verb of verbs) row.append(button(verb, `${verb} ${channel}`, () => moderate(channel, verb)));
  }
  const list = block.appendChild(element("ol"));
  for (const utterance of mine) {
    const item = list.appendChild(element("li", utterance.state === "SOUNDING" ? "sounds" : ""));
    item.append(describe(utterance, STATES[utterance.state]));
    if (utterance.state === "HELD") {
      for (const verb of Object.values(KEYS))
        item.append(button(verb, `${verb} ${utterance.text}`, () => decide(utterance, verb)));
      continue;
    }
    const path = `/api/requests/${encodeURIComponent(utterance.request_id)}/cancel`;
    item.append(button("cancel", `cancel ${utterance.text}`, () => act(path, `cancel: done`)));
  }
  return block;
}

function moderate(channel, verb, body) {
  return act(`/api/channels/${encodeURIComponent(channel)}/${verb}`, `${verb} ${channel}: done`, body);
}

function decide(utterance, verb) {
  utterance.isDecided = true; // the queue answers later than the next key may be pressed
  return moderate(utterance.channel, verb, { request_id: utterance.request_id });
}

// A key decides on the oldest held line.
document.addEventListener("keydown", (event) => {
  const verb = KEYS[event.key];
  if (!verb || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) return;
  const oldest = [...present.values()].find((one) => one.state === "HELD" && !one.isDecided);
  if (oldest) decide(oldest, verb);
});

async function act(path, done, body = {}) {
  try {
    await call(path, { body });
    at("message").className = "hint";
    at("message").textContent = done;
  } catch (error) {
    at("message").className = "hint bad";
    at("message").textContent = error.message;
    if (error.status === 401) askToken();
  }
}

function describe(utterance, state) {
  const text = element("p");
  text.append(element("span", "", utterance.text));
  const who = utterance.user_key ? `${utterance.user_key} · ` : "";
  text.append(element("small", "", `${who}${utterance.voice} · ${(utterance.length_ms / 1000).toFixed(1)} s · ${state}`));
  return text;
}

// The box, and what has ended.

const seen = new Set();

function addRecent(utterance, last = false) {
  if (seen.has(utterance.request_id)) return;
  seen.add(utterance.request_id);
  at("none-yet").hidden = true;
  const item = element("li");
  item.append(describe(utterance, utterance.reason.toLowerCase().replaceAll("_", " ")));
  at("recent")[last ? "append" : "prepend"](item);
  while (at("recent").children.length > 50) at("recent").lastChild.remove();
}

async function look() {
  let status;
  try {
    status = await (await call("/api/status")).json();
  } catch (error) {
    if (error.status === 401) askToken();
    ready(false, error.status ? error.message : "The gateway cannot be reached.");
    return;
  }
  ready(status.ready, status.ready ? `Ready, version ${status.version}` : status.why || "Not ready.");
  showVoices(status.voices);
  showStored(status.voices);
  showBox(status);
  for (const utterance of status.recent) addRecent(utterance, true);
}

function ready(good, text) {
  if (at("ready").textContent !== text) at("ready").textContent = text;
  at("ready").className = good ? "good" : "bad";
}

function showVoices(voices) {
  const names = voices.filter((voice) => !voice.problem);
  const list = at("voice");
  if ([...list.options].map((option) => option.value).join() === names.map((voice) => voice.name).join()) return;
  const chosen = list.value;
  list.replaceChildren(...names.map((voice) => new Option(voice.display_name || voice.name, voice.name)));
  if (names.some((voice) => voice.name === chosen)) list.value = chosen;
}

function showBox({ jetson, clocks, domains, temperatures, slowed }) {
  const rows = [];
  if (!jetson) rows.push(["Machine", "no Jetson: there are no clocks to pin"]);
  else {
    rows.push(["Machine", jetson]);
    rows.push(["Clocks", [clocks.state.replaceAll("_", " "), clocks.mode, clocks.why].filter(Boolean).join(": ")]);
    const now = Object.entries(domains).filter(([, domain]) => domain.current);
    if (now.length) rows.push(["Now", now.map(([name, domain]) => `${name} ${Math.round(domain.current / 1e6)} MHz`).join(", ")]);
  }
  const zones = Object.entries(temperatures);
  rows.push(["Temperature", zones.map(([zone, degrees]) => `${zone} ${degrees.toFixed(0)} °C`).join(", ") || "no sensors"]);
  if (Object.keys(slowed).length) rows.push(["Slowed by heat", Object.keys(slowed).join(", ")]);
  at("box").replaceChildren(...rows.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]));
}

function askToken() {
  at("ask-token").hidden = false;
}

at("ask-token").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(at("token").value.trim());
  location.reload();
});

function element(name, kind = "", text = "") {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.textContent = text;
  return made;
}

function button(text, label, act) {
  const made = element("button", "", text);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

startVoices(
  async (stored) => {
    await look();
    if (stored) at("voice").value = stored;
  },
  (error) => {
    if (error.status === 401) askToken();
  },
);
follow("/api/queue", {}, { queue: changed }, (on) => {
  if (on) present.clear();
});
look();
setInterval(look, LOOK_MS);
setInterval(() => {
  const isSpeaking = speaking !== null && !speaking.signal.aborted && at("said").textContent === "…";
  at("stop").disabled = !isSpeaking && !player.sounding().length;
}, 500);
