// A line that is typed, and heard in this page.

import { call } from "./api.js";
import { at } from "./dom.js";
import { Player } from "./player.js";

const RATE = 24000; // of OpenAI's pcm

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
  const channel = at("channel").value;
  at("stop").disabled = false;
  tell("…");
  const body = {
    model: "f5-tts",
    input: at("text").value,
    voice: at("voice").value,
    response_format: "pcm",
    ...(channel ? { channel } : {}),
  };
  const begun = performance.now();
  try {
    const answer = await call("/v1/audio/speech", { body, signal: own.signal });
    spoken = answer.headers.get("x-request-id");
    player.begin(spoken, { rate: RATE, channel });
    let first = "";
    const samples = await play(spoken, answer.body.getReader(), () => {
      tell((first = `First sound after ${Math.round(performance.now() - begun)} ms.`));
    });
    tell(`${first} ${(samples / RATE).toFixed(1)} s of speech.`.trim());
  } catch (error) {
    player.stopAll();
    if (!own.signal.aborted) tell(error.message, true);
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

at("stop").addEventListener("click", () => stop("Stopped."));

// Ends this page's own line, if that is it.
export function endOwn(id, why) {
  if (id === spoken) stop(`Ended: ${why}.`);
}

function stop(text) {
  speaking?.abort();
  player.stopAll();
  at("stop").disabled = true;
  tell(text);
}

function tell(text, isBad = false) {
  at("said").className = isBad ? "hint bad" : "hint";
  at("said").textContent = text;
}

// Most characters that the daemon takes; a browser counts an emoji as two.
let most = 0;

export function limit(characters) {
  most = characters;
  at("text").dispatchEvent(new Event("input"));
}

at("text").addEventListener("input", () => {
  const text = at("text").value;
  if (most) at("text").maxLength = most + text.length - [...text].length;
});

setInterval(() => {
  const isSpeaking = speaking !== null && !speaking.signal.aborted && at("said").textContent === "…";
  at("stop").disabled = !isSpeaking && !player.sounding().length;
}, 500);
