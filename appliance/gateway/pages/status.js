// The status page: what the box is, and what has ended. queue.js moderates, speak.js speaks, voices.js keeps voices.

import { call, follow, keepToken } from "./api.js";
import { at, element, write } from "./dom.js";
import { changed, connected, startQueue } from "./queue.js";
import { endOwn, limit, player } from "./speak.js";
import { showStored, startVoices } from "./voices.js";
import { factsOf, reasonOf, writtenOf } from "./words.js";

const LOOK_MS = 5000;
const MOST_RECENT = 50;
const REMEMBERED = 500;
const seen = new Set();
let isConnected = true;

function queueChanged(event) {
  player.hold(event.paused);
  for (const utterance of event.utterances) {
    if (utterance.state !== "ENDED") continue;
    addRecent(utterance);
    if (utterance.reason !== "SPOKEN") endOwn(utterance.request_id, reasonOf(utterance));
  }
  changed(event);
}

function addRecent(utterance, last = false) {
  if (seen.has(utterance.request_id)) return;
  seen.add(utterance.request_id);
  if (seen.size > REMEMBERED) seen.delete(seen.values().next().value);
  at("none-yet").hidden = true;
  const item = element("li");
  const words = item.appendChild(element("p"));
  const text = words.appendChild(element("span", "", utterance.text));
  text.title = writtenOf(utterance) || utterance.text;
  words.append(element("small", "", factsOf(utterance, reasonOf(utterance))));
  at("recent")[last ? "append" : "prepend"](item);
  while (at("recent").children.length > MOST_RECENT) at("recent").lastChild.remove();
}

async function look() {
  let status;
  try {
    status = await (await call("/api/status")).json();
  } catch (error) {
    askToken(error);
    ready(false, error.status ? error.message : "The gateway cannot be reached.");
    return;
  }
  if (!isConnected) ready(false, "The queue cannot be followed: what is shown may be old. Trying again …");
  else ready(status.ready, status.ready ? `Ready, version ${status.version}` : status.why || "Not ready.");
  limit(status.max_text_characters);
  showVoices(status.voices);
  showStored(status.voices);
  showBox(status);
  for (const utterance of status.recent) addRecent(utterance, true);
}

function ready(good, text) {
  write(at("ready"), text);
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
  if (!jetson) rows.push(["Machine", "not a Jetson: no clocks to pin"]);
  else {
    rows.push(["Machine", jetson]);
    rows.push(["Clocks", [clocks.state.replaceAll("_", " "), clocks.mode, clocks.why].filter(Boolean).join(": ")]);
    const now = Object.entries(domains).filter(([, domain]) => domain.current);
    if (now.length) rows.push(["Now", now.map(([name, domain]) => `${name} ${Math.round(domain.current / 1e6)} MHz`).join(", ")]);
  }
  const zones = Object.entries(temperatures);
  rows.push(["Temperature", zones.map(([zone, degrees]) => `${zone} ${degrees.toFixed(0)} °C`).join(", ") || "no sensors"]);
  if (Object.keys(slowed).length) rows.push(["Slowed by heat", Object.keys(slowed).join(", ")]);
  const shown = rows.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]);
  if (shown.map((one) => one.textContent).join() !== [...at("box").children].map((one) => one.textContent).join())
    at("box").replaceChildren(...shown);
}

function askToken(error) {
  if (error.status === 401) at("ask-token").hidden = false;
}

at("ask-token").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(at("token").value.trim());
  location.reload();
});

startVoices(async (stored) => {
  await look();
  if (stored) at("voice").value = stored;
}, askToken);
startQueue(askToken);
follow("/api/queue", {}, { queue: queueChanged }, (on) => {
  const changes = isConnected !== on;
  isConnected = on;
  connected(on);
  if (changes) look();
});
look();
setInterval(look, LOOK_MS);
